"""``streamworker status``, ``lag`` and ``history``: show members, owners, lag and rebalances of a group."""

from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import anyio

from streamworker.cli.options import AsJson, GroupPath, Limit, Processors
from streamworker.cli.output import print_json, print_table, say
from streamworker.cli.support import LOOK_S, ask, take, take_all
from streamworker.core.holdings import Holding, Holdings
from streamworker.core.snapshot import GroupSnapshot
from streamworker.core.words import checkpoint_text, counted, ranges
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import StreamworkerError
from streamworker.importing import Selection, resolve_processors
from streamworker.redisio.holdings import take_holdings
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.read.archived import oldest_archived
from streamworker.tui import model, overview
from streamworker.tui.figures import dropped, duration, failure, held_up, local_time, memory, state_of

STORE_S = 3.0
"""How long `status` waits for the stores of archives."""


def status(app: GroupPath, processor: Processors = None, json: AsJson = False) -> None:
    """Show the members of a group, the owner of each partition, and what Redis holds.

    Of several processors it prints a line each first, from two looks a second apart. Of streams,
    acked logs, state and dead letters it prints the memory, the oldest record that can be read
    again, and when the memory is full at today's rate.

    \b
    Examples:
      streamworker status shop:app
    """
    selection = resolve_processors(app, processor)
    seen, holdings = ask(selection.app, _status, selection)
    if json:
        print_json([_as_json(each, holdings) for each in seen])
        return
    if len(seen) > 1:
        print_table(overview.COLUMNS, [overview.line(each) for each in seen])
        say("")
    for each in seen:
        _print_status(each.snapshot)
        say("")
    _print_holdings(holdings, {each.snapshot.processor for each in seen if not each.snapshot.readers})


async def _status(backend: Backend, selection: Selection) -> tuple[list[model.Model], Holdings]:
    specs = selection.groups
    before = [await take(backend, spec) for spec in specs]
    holdings, now = await with_first(selection, await holdings_of(backend, selection)), before
    if len(specs) > 1:
        await anyio.sleep(LOOK_S)
        now = [await take(backend, spec) for spec in specs]
    return [model.rows(then, later) for then, later in zip(before, now, strict=True)], holdings


async def holdings_of(backend: Backend, selection: Selection) -> Holdings:
    """Return what the streams and processors of a selection hold."""
    specs = [spec.stream for spec in selection.processors]
    if selection.is_whole:
        # Of a whole app also the streams that none of its processors reads.
        specs += (stream.spec for stream in selection.app.registry.streams.values())
    streams = {spec.name: spec.placement.total for spec in specs}
    groups = [(each.stream.name, each.name) for each in selection.processors if not each.is_archiver]
    archives = {spec.name: spec.archive for spec in specs if spec.archive is not None}
    return await take_holdings(backend, selection.app.name, streams, groups, archives)


async def with_first(selection: Selection, holdings: Holdings) -> Holdings:
    """Add when the archives of streams begin, as far as their stores tell it soon."""
    times: dict[str, list[int]] = {}

    async def ask(spec: StreamSpec, partition: int) -> None:
        with suppress(StreamworkerError):  # `archive status` says why a store does not answer.
            if found := await oldest_archived(spec, partition):
                times.setdefault(spec.name, []).append(found.first.ms)

    with anyio.move_on_after(STORE_S):
        async with anyio.create_task_group() as asking:
            for stream in selection.app.registry.streams.values():
                if stream.spec.archive is not None:
                    for p in stream.spec.placement.all:
                        asking.start_soon(ask, stream.spec, p)
    held = (
        replace(each, archived=replace(each.archived, first_ms=min(times[each.name])))
        if each.archived and each.name in times
        else each
        for each in holdings.held
    )
    return replace(holdings, held=tuple(held))


def _print_holdings(holdings: Holdings, unread: set[str]) -> None:
    rows = []
    for each in holdings.held:
        if each.size or each.kind in ("stream", "acked log"):
            records = each.records if each.kind != "state" else None
            oldest_ms = (each.archived and each.archived.first_ms) or each.oldest_ms
            oldest = local_time(oldest_ms) if oldest_ms else None
            stays = kept(each, holdings.taken_ms)
            rows.append((each.kind, each.name, records, memory(each.size), oldest, stays))
    print_table(("", "name", "records", "memory", "oldest", "kept"), rows)
    for each in holdings.held:
        if each.kind == "acked log" and each.records and each.name in unread:
            say(
                f"Nobody reads the acked log of {each.name!r} ({memory(each.size)}). If nobody will, declare "
                "the processor with forward=False; log_retention= says how long rows stay."
            )
    say(*(archived_text(each, holdings.taken_ms) for each in holdings.held if each.archived is not None))
    say("", memory_forecast(holdings))


def kept(holding: Holding, now_ms: int) -> str:
    """Return in words what stays of a stream or a log."""
    if holding.is_endless:
        return "everything: no group reads it"
    if not holding.retention:
        by = {"stream": "groups", "acked log": "readers"}.get(holding.kind)
        return f"trimmed once all {by} have read it" if by else ""
    if holding.is_early(now_ms):
        return f"{holding.retention}, too early to tell how it grows"
    growth = holding.growth(now_ms)
    grows = f", about {memory(growth.most)} in {duration(round(growth.seconds * 1000))}"
    return f"{holding.retention}{grows if growth.most > 1.05 * growth.size else ''}"


def archived_text(holding: Holding, now_ms: int) -> str:
    """Return in words how far the archive of a stream is, and what only it has."""
    found = holding.archived
    assert found is not None
    upto = f"up to {local_time(found.upto_ms)}" if found.records else "not yet"
    waits = f", the oldest for {duration(found.waits_ms(now_ms))}" if found.waiting else ""
    return (
        f"{holding.name} is archived {upto}: {counted(found.only, 'record')} only there, "
        f"{found.waiting:,} not yet archived{waits}. {found.archive.url}"
    )


def memory_forecast(holdings: Holdings) -> str:
    """Return in words when the memory is full."""
    if not holdings.limit:
        used = f"{memory(holdings.used)} of memory are used; " if holdings.used else ""
        return f"{used}the server has no maxmemory, or did not tell it."
    used = f"{memory(holdings.used)} of {memory(holdings.limit)} are used"
    if holdings.full_in_s == 0:
        return f"{used}: the memory is full, and Redis refuses to write."
    text = f"{used}. Full at today's rate: "
    if any(each.is_early(holdings.taken_ms) for each in holdings.held):
        return f"{text}too early to tell."
    if holdings.full_in_s is None:
        return f"{text}never, as long as groups and readers keep up."
    return f"{text}in {duration(round(holdings.full_in_s * 1000))}."


def _as_json(shown: model.Model, holdings: Holdings) -> dict[str, object]:
    group, full_s = shown.snapshot, holdings.full_in_s
    held = {
        "holdings": [
            each
            for each in holdings.held
            if each.name == (group.stream if each.kind == "stream" else group.processor) or not each.is_read
        ],
        "memory_used": holdings.used,
        "memory_limit": holdings.limit,
        "memory_full_in_s": None if full_s is None else round(full_s),
    }
    return {**asdict(group), "per_second": shown.committed_per_s, "held": held}


def lag(app: GroupPath, processor: Processors = None, json: AsJson = False) -> None:
    """Show the lag of each processor.

    It also shows each partition that is behind, the number of dead letters, and the rows that Spark
    readers have not read yet.

    \b
    Examples:
      streamworker lag shop:app
    """
    taken = take_all(resolve_processors(app, processor))
    facts = [_lag_of(snapshot) for snapshot in taken]
    if json:
        print_json(facts)
        return
    for snapshot in taken:
        say(*snapshot.problems, *snapshot.unknown)
    rows = []
    for each in facts:
        largest = max(each["partitions"].values(), default=0)
        rows.append((each["processor"], each["stream"], each["lag"], largest, each["dead"]))
    print_table(("processor", "stream", "lag", "largest", "dead"), rows)
    behind = [
        (snapshot.processor, view.partition, view.lag, state_of(view), _name(snapshot, view.owner))
        for snapshot in taken
        for view in snapshot.partitions
        if view.lag
    ]
    if behind:
        say("")
        print_table(("processor", "partition", "lag", "state", "owner"), behind)
    readers = [
        (
            snapshot.processor,
            reader.name,
            sum(reader.positions.values()),
            reader.lag_rows,
            reader.late_rows,
            reader.dropped_rows,
        )
        for snapshot in taken
        for reader in snapshot.readers
    ]
    if readers:
        say("")
        print_table(
            ("processor", "spark reader", "rows", "lag in rows", "trimmed before", "dropped"), readers
        )


def history(app: GroupPath, processor: Processors = None, limit: Limit = 50, json: AsJson = False) -> None:
    """Show rebalances: time, cause, moved partitions and duration.

    A rebalance ends when every moved partition runs again. It is superseded if the others moved elsewhere,
    or back to the worker that had not given them up yet. With coordination="claim" each claim is one
    line; with coordination="lease" a line holds the races of one second that a worker won.

    \b
    Examples:
      streamworker history shop:price
      streamworker history shop:app --limit 10 --json
    """
    taken = take_all(resolve_processors(app, processor))
    changes = [(snapshot, change) for snapshot in taken for change in snapshot.rebalances[-limit:]]
    problems = [problem for snapshot in taken for problem in snapshot.problems]
    say(*problems, error=True)
    if json:
        print_json([{"processor": snapshot.processor, **asdict(change)} for snapshot, change in changes])
        return
    if not changes:
        if not problems:
            has_run = any(view.epoch for snapshot in taken for view in snapshot.partitions)
            say(
                "No change is known any more."
                if has_run
                else "Nothing has changed yet: no worker has joined."
            )
        return
    rows = []
    for snapshot, change in changes:
        what = (snapshot.processor, change.generation, change.cause, change.member, len(change.moved))
        took = "superseded" if change.superseded else "moving" if change.ms is None else change.ms
        moved = ranges(change.moved) if change.moved else ""
        rows.append((local_time(change.at_ms, "milliseconds"), *what, took, moved))
    columns = ("time", "processor", "generation", "cause", "member", "moved", "ms", "partitions")
    print_table(columns, rows)


def _lag_of(snapshot: GroupSnapshot) -> dict[str, Any]:
    return {
        "processor": snapshot.processor,
        "stream": snapshot.stream,
        "lag": snapshot.lag,
        "dead": snapshot.dead,
        "partitions": {view.partition: view.lag for view in snapshot.partitions},
        "readers": {reader.name: reader.lag_rows for reader in snapshot.readers},
        "trimmed_before": {reader.name: reader.late_rows for reader in snapshot.readers if reader.late_rows},
        "dropped": {reader.name: reader.dropped_rows for reader in snapshot.readers if reader.dropped_rows},
        "problems": (*snapshot.problems, *snapshot.unknown),
    }


def _print_status(snapshot: GroupSnapshot) -> None:
    say(
        f"{snapshot.app}: {snapshot.stream} -> {snapshot.processor}, generation {snapshot.generation}, "
        f"lag {snapshot.lag}",
        *snapshot.problems,
        *snapshot.unknown,
        *snapshot.deaths,
    )
    if snapshot.members:
        is_weighted = any(member.load or member.capacity != 1 for member in snapshot.members)
        rows = []
        for each in snapshot.members:
            row = [each.name, each.id, each.host, each.pid, each.state, len(each.partitions)]
            load = [f"{each.load / 10:.0f} %", each.capacity] if is_weighted else []
            rows.append([*row, duration(each.beat_age_ms), *load])
        names = ["member", "id", "host", "pid", "state", "partitions", "heartbeat"]
        print_table([*names, *(["load", "capacity"] if is_weighted else [])], rows)
    else:
        say("No worker is known." if snapshot.unknown else "No worker runs.")
    say("")
    sends = any(view.outbox for view in snapshot.partitions)
    rows = []
    for view in snapshot.partitions:
        owned = [view.partition, _name(snapshot, view.owner), view.epoch, state_of(view)]
        owned.append(checkpoint_text(view.checkpoint))
        counts = [view.lag, view.rows, view.dead, *([view.outbox] if sends else [])]
        rows.append([*owned, *counts, held_up(view, snapshot.taken_ms)])
    names = ["partition", "owner", "epoch", "state", "checkpoint", "lag", "rows", "dead"]
    print_table([*names, *(["outbox"] if sends else []), "reason"], rows)

    for reader in snapshot.readers:
        told = (dropped(reader), failure(reader, snapshot.taken_ms))
        say(*(f"Spark reader {reader.name} {text}" for text in told if text))
    if snapshot.tables:
        say("")
        has_ends = any(table.next_ms is not None for table in snapshot.tables)
        tables = [
            (table.name, table.keys, memory(table.bytes), overview.ends_of(table, snapshot.taken_ms))
            for table in snapshot.tables
        ]
        columns = ("table", "keys", "memory", "ends")
        print_table(columns if has_ends else columns[:3], [row if has_ends else row[:3] for row in tables])


def _name(snapshot: GroupSnapshot, member_id: str | None) -> str:
    if member_id is None:
        return "-"
    return next((member.name for member in snapshot.members if member.id == member_id), f"{member_id} (gone)")
