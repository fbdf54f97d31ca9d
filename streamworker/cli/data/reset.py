"""``streamworker reset``: moves a group's checkpoint."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import typer

from streamworker.app import App
from streamworker.cli.support import (
    ProcessorPath,
    Yes,
    confirm,
    connected,
    group_keys,
    print_table,
    run_async,
    say,
    take,
)
from streamworker.core.data.entries import SEQUENCE_MAX, ZERO, EntryId
from streamworker.core.ownership.locks import Held
from streamworker.errors import BackendRefused, ConfigurationError, CoordinationError
from streamworker.importing import Selection, resolve_processor
from streamworker.processors import ProcessorSpec
from streamworker.redisio.data.streams import entries_up_to
from streamworker.redisio.group.locks import move_checkpoint, read_lock
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import pairs_of
from streamworker.tui.figures import counted


@dataclass(frozen=True, slots=True)
class Move:
    """The planned move of one partition's checkpoint."""

    partition: int
    before: EntryId
    after: EntryId
    committed: int
    """Source records committed so far."""
    entries: int
    """Source records up to the new checkpoint."""
    owner: str
    """The dead worker that the lock still names."""

    @property
    def effect(self) -> str:
        """The effect on the records, for people."""
        change = self.entries - self.committed
        if change == 0:
            return "-"
        return f"{-change:,} run again" if change < 0 else f"{change:,} are skipped"


def reset(
    processor: ProcessorPath,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="earliest|latest|ID|TIME",
            help="Where to go on: at the first entry of the stream; after its last entry; after an entry id; "
            "or at a time, such as 2026-01-31T12:00 (local) or 2026-01-31T12:00Z.",
        ),
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", metavar="N", help="Only this partition; may be given several times."),
    ] = None,
    clear_tables: Annotated[
        bool, typer.Option("--clear-tables", help="Empty the processor's tables in these partitions.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Move a processor's checkpoint.

    Move it back to run records again, or ahead to skip records.

    The command refuses while a worker of the group runs: stop the workers first. Records that run
    again are forwarded again, so the acked log and Spark's tables hold their rows a second time. The
    processor's own tables keep what was counted since, unless --clear-tables empties them.

    \b
    Examples:
      streamworker reset shop:price --to earliest
      streamworker reset shop:price --to 2026-01-31T12:00Z
      streamworker reset shop:price --to 1769860800000-0 --partition 3 --yes
    """
    run_async(_reset, resolve_processor(processor), parse_target(to), partition, clear_tables, yes)


def parse_target(text: str) -> EntryId | None:
    """Parse ``--to`` as a checkpoint; None stands for the last entry of each partition."""
    if text == "earliest":
        return ZERO
    if text == "latest":
        return None
    if text.replace("-", "", 1).isdigit() and len(text.partition("-")[0]) > 8:
        return EntryId.parse(text)
    try:
        moment = datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither earliest, latest, an entry id such as 1769860800000-0, "
            "nor a time such as 2026-01-31T12:00Z.",
            param_hint="--to",
        ) from None
    # The checkpoint is the last committed entry: the last possible id of the millisecond before.
    return EntryId(max(0, int(moment.timestamp() * 1000) - 1), SEQUENCE_MAX)


async def _reset(
    selection: Selection,
    target: EntryId | None,
    partitions: list[int] | None,
    clear_tables: bool,
    yes: bool,
) -> None:
    app, spec = selection.app, selection.processors[0]
    wanted = sorted(set(partitions or range(spec.stream.partitions)))
    if wanted[0] < 0 or wanted[-1] >= spec.stream.partitions:
        raise typer.BadParameter(
            f"The partitions are 0 to {spec.stream.partitions - 1}.", param_hint="--partition"
        )
    async with connected(app) as backend:
        await _refuse_if_alive(backend, app, spec)
        moves = await _plan(backend, spec, wanted, target)
        print_table(
            ("partition", "checkpoint", "new checkpoint", "effect"),
            [(move.partition, str(move.before), str(move.after), move.effect) for move in moves],
        )
        tables = [table.name for table in spec.tables]
        named = ", ".join(tables)
        if tables and not clear_tables and any(move.entries < move.committed for move in moves):
            hold = "holds" if len(tables) == 1 else "hold"
            say(
                f"{named} {hold} what was counted since and is not undone: add --clear-tables to begin from "
                "empty tables, or count twice."
            )
        if tables and clear_tables:
            say(f"Empties {named} in {counted(len(moves), 'partition')}.")
        if not yes:
            confirm(f"Move the checkpoint of {counted(len(moves), 'partition')} of {spec.name}?")
            # A worker may have started while the command waited for the answer.
            await _refuse_if_alive(backend, app, spec)
        for move in moves:
            await _move(backend, group_keys(spec), move, tables if clear_tables else ())
    say(f"Moved {counted(len(moves), 'partition')} of {spec.name}.")


async def _refuse_if_alive(backend: Backend, app: App, spec: ProcessorSpec) -> None:
    """Refuse while a member may still commit. A killed member stays in the group until its removal."""
    alive = [
        member.name
        for member in (await take(backend, spec)).members
        if member.beat_age_ms is not None and member.beat_age_ms < app.settings.session_timeout_ms
    ]
    if alive:
        raise CoordinationError(
            f"Processor {spec.name!r} is being run by {', '.join(sorted(alive))}.",
            remedy="Stop all of its workers first: their commits would be refused after the move.",
        )


async def _plan(
    backend: Backend, spec: ProcessorSpec, partitions: list[int], target: EntryId | None
) -> list[Move]:
    keys = group_keys(spec)
    moves = []
    for partition in partitions:
        lock = await read_lock(backend, keys, partition)
        if lock is None:
            raise ConfigurationError(
                f"Processor {spec.name!r} has never run: it has no checkpoint to move.",
                remedy="It will start where its stream says: app.stream(..., start=...).",
            )
        events = keys.events(partition)
        last = await _last_entry(backend, events)
        # A checkpoint beyond the end would skip entries that are not sent yet.
        after = last if target is None else min(target, last)
        entries = await entries_up_to(backend, keys, partition, after)
        moves.append(Move(partition, lock.checkpoint, after, lock.entries, entries, lock.owner))
    return moves


async def _last_entry(backend: Backend, events: str) -> EntryId:
    try:
        info = await backend.execute("XINFO", "STREAM", events)
    except BackendRefused:
        return ZERO  # The stream does not exist: no record was ever sent.
    return EntryId.parse(pairs_of(info)[b"last-generated-id"])


async def _move(backend: Backend, keys: GroupKeys, move: Move, clear: Iterable[str]) -> None:
    done = await move_checkpoint(
        backend, keys, move.partition, move.after, entries=move.entries, owner=move.owner, clear=clear
    )
    if isinstance(done, Held):
        raise CoordinationError(
            f"Partition {move.partition} was taken by {done.owner} meanwhile, and was not moved.",
            remedy="Stop the workers and run this again.",
        )
