"""``streamworker reset``: moves a group's checkpoint."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import typer

from streamworker.app import App
from streamworker.cli.options import Partitions, ProcessorPath, Yes, option
from streamworker.cli.output import confirm, print_table, say
from streamworker.cli.requests import operator
from streamworker.cli.support import ask, give_up, group_keys, halves_told, take, wanted_partitions
from streamworker.core.control import RequestMade
from streamworker.core.data.entries import SEQUENCE_MAX, ZERO, EntryId
from streamworker.core.ownership.locks import Held
from streamworker.core.text import storable
from streamworker.core.time.lifetimes import Lifetimes
from streamworker.core.words import checkpoint_text, counted, ranges
from streamworker.declaring.specs import ProcessorSpec
from streamworker.errors import CoordinationError, StreamworkerError
from streamworker.importing import resolve_processor
from streamworker.redisio.data import retention
from streamworker.redisio.data.state import TIMERS, clear_state, read_state
from streamworker.redisio.data.streams import entries_up_to, set_field
from streamworker.redisio.group.archiving import overtaken
from streamworker.redisio.group.control import post
from streamworker.redisio.group.following import read_maps
from streamworker.redisio.group.locks import move_checkpoint, numbers, read_lock
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import Durability
from streamworker.runtime.durability import durability_of
from streamworker.runtime.read.archived import archived_up_to, oldest_archived, records_before
from streamworker.tui.figures import duration, local_time


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
    oldest: EntryId | None
    """The first record that is still there, in Redis or in the archive."""
    dropped: bool
    """Whether there were entries before that."""
    waits_for: tuple[int, ...] = ()
    """The partitions of the generation before, if the group must be done with them anew."""

    @property
    def change(self) -> int:
        """How many records are skipped, or run again if it is negative."""
        return self.entries - self.committed

    @property
    def held(self) -> tuple[int, ...]:
        """What the lock says that it waits for until all have moved: itself, too, so that nobody opens it."""
        return (*self.waits_for, self.partition) if self.waits_for else ()

    @property
    def lacks(self) -> bool:
        """Whether entries that were to run again may be gone."""
        asked = self.after not in (ZERO, self.before) and self.after < self.before
        return asked and self.dropped and (self.oldest is None or self.after.ms + 1 < self.oldest.ms)

    @property
    def effect(self) -> str:
        """The effect on the records, for people."""
        if self.change == 0:
            return "-"
        return f"{-self.change:,} to run again" if self.change < 0 else f"{self.change:,} to skip"

    @property
    def back_ms(self) -> int:
        """How far back in time it goes."""
        since = self.oldest if self.oldest is not None and self.after < self.oldest else self.after
        return max(0, self.before.ms - since.ms)


def reset(
    processor: ProcessorPath,
    to: Annotated[
        str,
        option(
            "--to earliest|latest|ID|TIME",
            "Where to go on: at the first entry of the stream; after its last entry; after an entry id; "
            "or at a time, such as 2026-01-31T12:00 (local) or 2026-01-31T12:00Z.",
        ),
    ],
    partition: Partitions = None,
    dry_run: Annotated[bool, option("--dry-run", "Say what would move, and move nothing.")] = False,
    clear_tables: Annotated[
        bool,
        option(
            "--clear-tables",
            "Empty the processor's tables in these partitions. ctx.state stays, such as a watermark in it "
            "(docs: operations), unless partitions that follow them begin anew.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Move a processor's checkpoint: back, to run records again, or ahead, to skip them.

    The command refuses while a worker runs the partitions: pause them first. Records that run again
    are forwarded again, so the acked log and Spark's tables hold their rows a second time. The
    processor's own tables keep what was counted since, unless --clear-tables empties them. A
    position from which on records are gone is refused (docs: retention). What only the archive of
    the stream still has, runs again from there (docs: archive). If the stream has grown, partitions
    that follow one that goes back begin anew, and wait for it (docs: partitions).

    \b
    Examples:
      streamworker reset shop:price --to earliest
      streamworker reset shop:price --to 2026-01-31T12:00Z --dry-run
      streamworker reset shop:price --to 1769860800000-0 --partition 3 --yes
    """
    app, spec = resolve_processor(processor)
    ask(app, _reset, app, spec, to, partition, dry_run, clear_tables, yes, of=spec.stream)


def parse_target(text: str, hint: str = "--to") -> EntryId | None:
    """Parse an option as a checkpoint; None stands for the last entry of each partition."""
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
            param_hint=hint,
        ) from None
    # The checkpoint is the last committed entry: the last possible id of the millisecond before.
    return EntryId(max(0, int(moment.timestamp() * 1000) - 1), SEQUENCE_MAX)


async def _reset(
    backend: Backend,
    app: App,
    spec: ProcessorSpec,
    to: str,
    given: list[int] | None,
    dry_run: bool,
    clear_tables: bool,
    yes: bool,
) -> None:
    target = parse_target(to)
    clear_tables = clear_tables or spec.window is not None
    wanted = wanted_partitions(spec.stream, given, "--partition")
    await _refuse_if_gone(backend, spec, await _plan(backend, spec, wanted, target))
    is_run = not dry_run and await refuse_if_run(backend, app, spec, wanted)
    plan = await _plan(backend, spec, wanted, target)  # What the last worker has committed counts.
    clears = clear_tables and (spec.tables or any(move.waits_for for move in plan))
    moves = [move for move in plan if move.change or move.waits_for or clears]
    if not moves:
        give_up("Nothing would run again and nothing would be skipped. Nothing was changed.")
    await _refuse_apart(backend, spec, moves, wanted, clear_tables)
    print_table(
        ("partition", "checkpoint", "new checkpoint", "effect"),
        [
            (move.partition, checkpoint_text(move.before), checkpoint_text(move.after), move.effect)
            for move in moves
        ],
    )
    tables = spec.lifetimes
    say(*_told("Moves", moves), *await _stays(backend, spec, moves, clear_tables))
    if again := [move for move in moves if move.waits_for]:
        first = {p for move in again for p in move.waits_for}
        say(f"Partitions {ranges(move.partition for move in again)} wait until {ranges(first)} are done.")
    if dry_run:
        say("Nothing was changed.")
        return
    if not yes:
        confirm(f"Move the checkpoint of {counted(len(moves), 'partition')} of {spec.name}?")
        # A worker may have started while the command waited for the answer.
        is_run = await refuse_if_run(backend, app, spec, [move.partition for move in moves])
    keys, durability, moved = group_keys(spec), durability_of(app.settings), list[Move]()
    with halves_told(lambda: " ".join(_told("Moved", moved))):
        try:
            for move in _in_order(moves):
                if again and clear_tables and len(moved) == len(again):
                    for each in moves:  # Nobody opens what follows, and the others are done or stand still.
                        await clear_state(backend, keys, each.partition)
                owner = "" if is_run else move.owner
                await _move(backend, keys, move, owner, tables if clear_tables else {}, durability)
                moved.append(move)
        finally:
            for move in filter(lambda move: move.waits_for, moved):
                held, parents = map(numbers, (move.held, move.waits_for))
                await set_field(backend, keys.lock(move.partition), "from", held, parents)
            if moved:
                parts = tuple(sorted(move.partition for move in moved))
                told = RequestMade("reset", parts, (), storable(operator()), f"to {to}")
                await post(backend, keys, [told.fields()])
    say(*_told("Moved", moves))
    if is_run:
        say(f"Paused: `streamworker resume MODULE:{spec.name}` lets it go on.")


def _told(verb: str, moves: list[Move]) -> list[str]:
    """Return what moves, in a sentence for each direction."""
    told = []
    for sign, where in ((-1, "back"), (1, "ahead")):
        if parts := [move for move in moves if sign * move.change > 0]:
            records = counted(sum(abs(move.change) for move in parts), "record")
            furthest = max(move.back_ms for move in parts)
            how_far = f" ({duration(furthest)})" if furthest else ""
            told.append(f"{verb} {counted(len(parts), 'partition')} {where} by {records}{how_far}.")
    return told


async def _stays(backend: Backend, spec: ProcessorSpec, moves: list[Move], clear_tables: bool) -> list[str]:
    """Return what a move back does not undo, and what happens to the tables."""
    back = [move.partition for move in moves if move.change < 0]
    tables, told = ", ".join(table.name for table in spec.tables), []
    begins_anew = any(move.waits_for for move in moves)
    if clear_tables and (emptied := [*filter(None, [tables]), *(["ctx.state"] if begins_anew else [])]):
        told.append(f"Empties {', '.join(emptied)} in {counted(len(moves), 'partition')}.")
    if not back:
        return told
    if tables and not clear_tables:
        hold = "holds" if len(spec.tables) == 1 else "hold"
        told.append(
            f"{tables} {hold} what was counted since and is not undone: add --clear-tables to begin from "
            "empty tables, or count twice."
        )
    if spec.window is not None:
        told.append(
            "Windows that begin before are counted from there on: go back one window and its lateness "
            "further to count them whole. Rows are sent again, with the same key and start."
        )
    if not begins_anew and await _has_state(backend, spec, back):
        told.append("The state holds what was counted since, and is not undone.")
    if spec.forward:
        told.append(
            "Rows of the acked log that were committed stay; what runs again is committed again, so Spark's "
            "tables get these rows a second time."
        )
    return told


async def _refuse_apart(
    backend: Backend, spec: ProcessorSpec, moves: list[Move], wanted: list[int], clear_tables: bool
) -> None:
    """Refuse to move partitions back without those that follow them, and what these have of them."""
    placement, back = spec.stream.placement, {move.partition for move in moves if move.change < 0}
    follow = {p for p in placement.all if not back.isdisjoint(placement.ancestors_of(p))}
    if apart := follow.difference(wanted):
        raise StreamworkerError(
            f"Partitions {ranges(apart)} follow {ranges(back)}: what they have handled came later.",
            remedy="Name them with --partition, too, or leave it out. Nothing was changed.",
        )
    kept = [table.name for table in spec.tables]
    if follow and await _has_state(backend, spec, placement.all):
        kept.append("ctx.state")
    if kept and follow and not (clear_tables and len(wanted) == placement.total):
        raise StreamworkerError(
            f"What {', '.join(kept)} held for partitions that go back is in those that follow.",
            remedy="Add --clear-tables, without --partition: then all of them count from nothing, also in "
            "ctx.state. Nothing was changed.",
        )


async def _has_state(backend: Backend, spec: ProcessorSpec, partitions: Iterable[int]) -> bool:
    """Whether functions keep something in the state of some partitions; what timers keep does not count."""
    stored = [await read_state(backend, group_keys(spec), p) for p in partitions]
    return any(not name.startswith(TIMERS) for state in stored for name in state)


async def _refuse_if_gone(backend: Backend, spec: ProcessorSpec, moves: list[Move]) -> None:
    """Refuse a position from which on some records are gone."""
    lacking = [move for move in moves if move.lacks]
    if not lacking:
        return
    kept = (await retention.read(backend, group_keys(spec))).stream
    name = f"Stream {spec.stream.name!r}"
    keeps = f"{name} keeps {kept}" if kept else f"{name} keeps only what a group has not read"
    if spec.stream.archive is not None:
        keeps = f"The archive of stream {spec.stream.name!r} does not go so far back"
    oldest = max((move.oldest.ms for move in lacking if move.oldest), default=None)
    there = "no entry is left" if oldest is None else f"the oldest entry is of {local_time(oldest)}"
    where = f" in {counted(len(lacking), 'partition')}" if len(lacking) < len(moves) else ""
    raise StreamworkerError(
        f"{keeps}; {there}{where}. Nothing was changed.",
        remedy=("Use --to earliest to go back to the oldest entries that are left. " if oldest else "")
        + "app.stream(..., retention=...) keeps more from now on.",
    )


async def refuse_if_run(backend: Backend, app: App, spec: ProcessorSpec, partitions: Iterable[int]) -> bool:
    """Refuse while a member may still commit in one of the partitions; return whether any member lives.

    A killed member stays in the group until its removal.
    """
    now, after = await read_maps(backend, group_keys(spec))
    if not now == after == spec.stream.placement.counts:
        raise CoordinationError(
            f"Stream {spec.stream.name!r} grows. Nothing was changed.",
            remedy="Run this again when `streamworker partitions` says that it has grown.",
        )
    group = await take(backend, spec)
    timeout_ms = app.settings.session_timeout_ms
    # Under a protocol without heartbeats an owner may live.
    alive = [
        member.name
        for member in group.members
        if (member in group.alive if member.beat_age_ms is None else member.beat_age_ms < timeout_ms)
    ]
    views = [view for view in group.all_partitions if view.partition in partitions]
    run = [view.partition for view in views if view.pause is None or view.state == "pausing"]
    if alive and run:
        raise CoordinationError(
            f"Processor {spec.name!r} is being run by {', '.join(sorted(alive))}, "
            f"in partitions {ranges(run)}.",
            remedy=f"Pause them first: `streamworker pause MODULE:{spec.called}`; or stop all of its "
            "workers. Nothing was changed.",
        )
    return bool(alive)


async def _plan(
    backend: Backend, spec: ProcessorSpec, partitions: list[int], target: EntryId | None
) -> list[Move]:
    keys, placement = group_keys(spec), spec.stream.placement
    moves, back = list[Move](), set[int]()
    for partition in partitions:
        lock = await read_lock(backend, keys, partition)
        if lock is None:
            raise StreamworkerError(
                f"Processor {spec.name!r} has no checkpoint in partition {partition}: it has never run "
                "there.",
                remedy="It will start where it says: @app.processor(..., start=...).",
            )
        last, oldest, sent, held = await retention.edges(backend, keys, partition)
        # A checkpoint beyond the end would skip entries that are not sent yet.
        after = last if target is None else min(target, last)
        entries, begins = await entries_up_to(backend, keys, partition, after), sent - held
        follows = not back.isdisjoint(placement.ancestors_of(partition))
        if spec.stream.archive is not None and (first := await oldest_archived(spec.stream, partition)):
            oldest, begins = first.first, records_before(first)
            if after == ZERO:
                entries = begins
            # Redis has counted before: what it says is not true of what was trimmed by then.
            elif await overtaken(backend, keys, {partition: after}):
                entries = await archived_up_to(spec.stream, partition, after)
        if follows and entries > begins:  # Its server has another clock.
            after, entries = ZERO, begins
        parents = {p for p in placement.parents_of(partition) if p in back} | {*lock.waits_for} - {partition}
        waits_for = tuple(sorted(parents)) if follows or partition in lock.waits_for else ()
        its = (lock.checkpoint, after, lock.entries, entries, lock.owner, oldest, begins > 0)
        moves.append(move := Move(partition, *its, waits_for))
        back |= {partition} if move.change < 0 or follows else set()
    return moves


def _in_order(moves: list[Move]) -> list[Move]:
    """Return moves so that, wherever they end, no partition goes back before those that follow it wait."""
    return [*(m for m in reversed(moves) if m.waits_for), *(m for m in moves if not m.waits_for)]


async def _move(
    backend: Backend, keys: GroupKeys, move: Move, owner: str, clear: Lifetimes, durability: Durability
) -> None:
    done = await move_checkpoint(
        backend,
        keys,
        move.partition,
        move.after,
        entries=move.entries,
        owner=owner,
        clear=clear,
        waits_for=move.held,
        durability=durability,
    )
    if done is None:
        raise CoordinationError(
            f"The group was removed from partition {move.partition} meanwhile: there is nothing to move."
        )
    if isinstance(done, Held):
        raise CoordinationError(
            f"Partition {move.partition} was taken or resumed by {done.owner} meanwhile, and was not moved.",
            remedy="Pause it, or stop the workers, and run this again.",
        )
