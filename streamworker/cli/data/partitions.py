"""``streamworker partitions``: shows the partitions of a stream, and gives it more of them."""

from typing import Annotated, Any

import anyio

from streamworker.app import App
from streamworker.cli.options import Yes, argument, option
from streamworker.cli.output import confirm, print_table, say
from streamworker.cli.requests import operator
from streamworker.cli.support import LOOK_S, ask
from streamworker.core.data.placement import Placement
from streamworker.core.snapshot import GroupSnapshot
from streamworker.core.words import counted, ranges
from streamworker.declaring.stream import Stream
from streamworker.errors import StreamworkerError
from streamworker.importing import resolve_stream
from streamworker.redisio.admin import growth
from streamworker.redisio.keys import GroupKeys, StreamKeys, is_name
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.runtime.durability import durability_of
from streamworker.tui.figures import duration, local_time


def partitions(
    stream: Annotated[str, argument("STREAM", "MODULE:NAME of the stream, such as shop:orders.")],
    count: Annotated[
        int | None, argument("[N]", "How many new partitions follow; without it the command only shows.")
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Say what would happen, and change nothing.")] = False,
    yes: Yes = False,
) -> None:
    """Show the partitions of a stream, or let it grow while records flow.

    The stream gets N new partitions, and those of today take nothing more. Each key goes to one of the
    new ones, and waits in each group until the old partition that it was in is done, so that its
    records stay in order. A growth is not taken back. A command that was interrupted goes on when it
    is run again (docs: partitions).

    \b
    Examples:
      streamworker partitions shop:orders
      streamworker partitions shop:orders 32 --dry-run
      streamworker partitions shop:orders 32
    """
    found = resolve_stream(stream)
    if count is None:
        ask(found.app, _show, found)
    else:
        ask(found.app, _grow, found, count, dry_run, yes)


async def _grow(backend: Backend, stream: Stream[Any], count: int, dry_run: bool, yes: bool) -> None:
    keys, durability = StreamKeys(stream.app.name, stream.name), durability_of(stream.app.settings)
    maps = await growth.plan(backend, keys, count)
    groups = await groups_of(backend, keys, maps.now)
    if not (await growth.read_maps(backend, keys)).is_changing:
        await _refuse_unready(backend, stream, maps.now, groups)
    old, new = maps.now.active, maps.next.active
    say(
        f"{stream.name}: {maps.now} → {maps.next}. {counted(len(old), 'partition')} of today "
        f"({ranges(old)}) take nothing more, {len(new)} new ones ({ranges(new)}) take what comes. Each key "
        "has one parent among the old ones, and waits until that is done."
    )
    print_table(("group", "waits for", "at today's rate"), await _prices(backend, keys, groups))
    if dry_run:
        say("Nothing was changed.")
        return
    if not yes:
        confirm(f"Let {stream.name} grow? This is not taken back.")
    await growth.prepare(backend, keys, count, durability)
    await growth.go_on(backend, keys, durability, operator())
    say(
        f"{stream.name} has {maps.next} partitions: {ranges(old)} are sealed, {ranges(new)} take what comes. "
        f"`streamworker partitions MODULE:{stream.name}` shows how far its groups are."
    )


async def groups_of(backend: Backend, keys: StreamKeys, placement: Placement) -> list[str]:
    """Return the groups that read the partitions that take records."""
    listed = all_answered(await backend.pipeline([("HKEYS", keys.groups(p)) for p in placement.active]))
    names = {name.decode("utf-8", "replace") for names in listed for name in names}
    return sorted(filter(is_name, names))


async def _prices(backend: Backend, keys: StreamKeys, groups: list[str]) -> list[tuple[str, str, str]]:
    """Return what the keys of each group wait for, and about how long, from two looks."""

    async def look() -> list[GroupSnapshot]:
        return [await take_snapshot(backend, keys.app, keys.stream, group) for group in groups]

    before = await look()
    await anyio.sleep(LOOK_S)
    return [
        _price(then, now, (now.taken_ms - then.taken_ms) / 1000)
        for then, now in zip(before, await look(), strict=True)
    ]


def _price(then: GroupSnapshot, now: GroupSnapshot, seconds: float) -> tuple[str, str, str]:
    furthest = max(now.partitions, key=lambda view: view.lag, default=None)
    if halted := [view.partition for view in now.partitions if view.state in ("halted", "paused")]:
        return now.processor, f"partitions {ranges(halted)}, which are halted or paused", "until they go on"
    if furthest is None or not furthest.lag:
        return now.processor, "nothing: it has read all", "at once"
    done = sum(view.records for view in now.partitions) - sum(view.records for view in then.partitions)
    left = f"the last {counted(furthest.lag, 'record')} of partition {furthest.partition}"
    if done <= 0:
        return now.processor, left, "its workers commit nothing now"
    each_s = furthest.lag * seconds * len(now.partitions) / done
    return now.processor, left, f"about {duration(round(each_s * 1000))}"


# -- what cannot grow yet ----------------------------------------------------------------------


async def _refuse_unready(
    backend: Backend, stream: Stream[Any], placement: Placement, groups: list[str]
) -> None:
    """Refuse a stream with something that this release cannot take along."""
    app, keys = stream.app, StreamKeys(stream.app.name, stream.name)
    assert isinstance(app, App)
    why: set[str] = set()
    for spec in app.registry.processors.values():
        if spec.stream.name == stream.name:
            why |= {f"{spec.name} writes table {table.name}" for table in spec.tables}
            why |= {f"{spec.name} has timer {timer.name}" for timer in spec.timers}
        elif stream.name in {target.name for target in spec.targets}:
            why.add(f"{spec.name} sends into it")
    taken = all_answered(await backend.pipeline([("HGETALL", keys.taken(p)) for p in placement.active]))
    # A stream that is adopted has its mark there, too, and can grow.
    if any(not name.startswith(b"source ") for marks in taken for name in marks[::2]):
        why.add("another stream's processor sends into it")
    found: dict[str, str] = {}
    for group in groups:
        its = GroupKeys(app.name, stream.name, group)
        found |= {its.state(p): f"{group} keeps state" for p in placement.active}
    there = all_answered(await backend.pipeline([("EXISTS", key) for key in found]))
    why |= {what for what, is_there in zip(found.values(), there, strict=True) if is_there}
    if why:
        raise StreamworkerError(
            f"Stream {stream.name!r} cannot grow with this release: {'; '.join(sorted(why))}.",
            remedy="Nothing was changed. Move to a new stream (docs: recipes/more-partitions).",
        )


# -- what there is -----------------------------------------------------------------------------


async def _show(backend: Backend, stream: Stream[Any]) -> None:
    keys = StreamKeys(stream.app.name, stream.name)
    maps = await growth.read_maps(backend, keys)
    groups = await groups_of(backend, keys, maps.now)
    rows = []
    for number, (its, since_ms) in enumerate(zip(maps.now.generations, maps.opened_ms, strict=True), start=1):
        lengths = all_answered(await backend.pipeline([("XLEN", keys.events(p)) for p in its]))
        stands = [await _standing(backend, GroupKeys(keys.app, keys.stream, group), its) for group in groups]
        rows.append((number, ranges(its), local_time(since_ms) if since_ms else "", sum(lengths), *stands))
    print_table(("generation", "partitions", "since", "entries", *groups), rows)
    if maps.is_changing:
        say(
            f"It is growing to {maps.next}: a worker goes on with that, or "
            f"`streamworker partitions MODULE:{stream.name} {maps.next.live}`."
        )


async def _standing(backend: Backend, keys: GroupKeys, partitions: range) -> str:
    """Return in words how far a group is with the partitions of one generation."""
    locks = await backend.pipeline(
        [("HMGET", keys.lock(p), "checkpoint", "from", "done") for p in partitions]
    )
    waiting, done, unread = list[int](), list[int](), list[int]()
    for partition, (checkpoint, parents, is_done) in zip(partitions, all_answered(locks), strict=True):
        if checkpoint is None:
            unread.append(partition)
        elif parents:
            waiting.append(partition)
        elif is_done:
            done.append(partition)
    said = [f"{len(done)} done"] if done else []
    said += [f"{len(waiting)} wait: {ranges(waiting)}"] if waiting else []
    said += [f"{len(unread)} not registered: {ranges(unread)}"] if unread else []
    left = len(partitions) - len(done) - len(waiting) - len(unread)
    if len(done) == len(partitions):
        return "done"
    return ", ".join([*([f"{left} open"] if left and said else []), *said]) or "open"
