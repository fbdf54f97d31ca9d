"""``streamworker partitions``: shows the partitions of a stream, and gives it more of them."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import anyio

from streamworker.app import App
from streamworker.cli.options import Yes, argument, option
from streamworker.cli.output import confirm, print_table, progress_bar, say
from streamworker.cli.requests import operator
from streamworker.cli.support import LOOK_S, ask
from streamworker.core.data.placement import Placement
from streamworker.core.snapshot import GroupSnapshot
from streamworker.core.words import counted, ranges, run_of
from streamworker.declaring.stream import Stream
from streamworker.errors import StreamworkerError
from streamworker.importing import resolve_stream
from streamworker.redisio.admin import growth, health
from streamworker.redisio.data.state import TIMERS, read_state
from streamworker.redisio.keys import GroupKeys, StreamKeys, is_name
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.runtime.durability import durability_of
from streamworker.tui.figures import duration, local_time

COPIED_PER_S = 20_000
"""Keys of tables and state that a group copies in a second at least: 21,000 to 25,000 were measured of one
process on a busy machine, and 121,000 of two workers."""
ROUND_TRIPS, WAIT_MIN_MS = 4, 100
"""How often a growth asks all old partitions or the map between its first seal and the new map. Senders look
at that from 20 ms on, and at least every 500 ms."""
NAMED_MAX = 5
FOLLOW_S = 0.5


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
    records stay in order. On a terminal the command shows how far the groups are, until all have
    caught up or Ctrl-C. A growth is not taken back. A command that was interrupted goes on when it is
    run again (docs: partitions).

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
    began_s = anyio.current_time()
    groups = await groups_of(backend, keys, maps.now)
    wait_ms = ROUND_TRIPS * 1000 * (anyio.current_time() - began_s)
    old, new = maps.now.active, maps.next.active
    say(
        f"{stream.name}: {maps.now} → {maps.next}. {counted(len(old), 'partition')} of today "
        f"({ranges(old)}) take nothing more, {len(new)} new ones ({ranges(new)}) take what comes. Each key "
        "has one parent among the old ones, and waits until that is done. Senders wait until all are "
        f"sealed, about {duration(max(WAIT_MIN_MS, round(wait_ms)))}."
    )
    old_clients = await _say_prices(backend, stream, maps.now, groups)
    if dry_run:
        say("Nothing was changed.")
        return
    if old_clients and not yes:
        raise StreamworkerError(
            "Programs of earlier releases are connected. Nothing was changed.",
            remedy="Update or stop them first; or add --yes.",
        )
    if not yes:
        confirm(f"Let {stream.name} grow? This is not taken back.")
    await growth.prepare(backend, keys, count, durability)
    with progress_bar() as progress:
        task = progress.add_task("sealed", total=len(old))
        told = lambda _, done, of: progress.update(task, completed=done, total=of)  # noqa: E731
        await growth.go_on(backend, keys, durability, operator(), told)
    say(
        f"{stream.name} has {maps.next} partitions: {ranges(old)} are sealed, {ranges(new)} take what comes. "
        f"`streamworker partitions MODULE:{stream.name}` shows how far its groups are."
    )
    if sys.stdout.isatty() and (groups := await groups_of(backend, keys, maps.next)):
        say("Waits for them; Ctrl-C ends that, and stops nothing.")
        await _follow(backend, [GroupKeys(keys.app, keys.stream, group) for group in groups], new)


async def _follow(backend: Backend, groups: Sequence[GroupKeys], new: range) -> None:
    """Show how many of the new partitions each group has opened, until it has opened all."""
    with progress_bar(note="caught up") as progress:
        tasks = [progress.add_task(keys.group, total=len(new), note="") for keys in groups]
        left = len(tasks)
        while left:
            left = 0
            for task, keys in zip(tasks, groups, strict=True):
                locks = await backend.pipeline([("HEXISTS", keys.lock(p), "from") for p in new])
                waiting = sum(all_answered(locks))
                left += waiting
                done = len(new) - waiting
                progress.update(task, completed=done, note=f"{done}/{len(new)}")
            if left:
                await anyio.sleep(FOLLOW_S)
    say(f"Caught up: {', '.join(keys.group for keys in groups)}.")


async def groups_of(backend: Backend, keys: StreamKeys, placement: Placement) -> list[str]:
    """Return the groups that read the partitions that take records."""
    listed = all_answered(await backend.pipeline([("HKEYS", keys.groups(p)) for p in placement.active]))
    names = {name.decode("utf-8", "replace") for names in listed for name in names}
    return sorted(filter(is_name, names))


async def _say_prices(
    backend: Backend, stream: Stream[Any], placement: Placement, groups: list[str]
) -> list[str] | None:
    """Say what a growth costs each group, and which programs cannot follow it; return their connections.

    How long keys wait comes from two looks.
    """
    app = stream.app

    async def look() -> list[GroupSnapshot]:
        return [await take_snapshot(backend, app.name, stream.name, group) for group in groups]

    before = await look()
    await anyio.sleep(LOOK_S)
    after = await look()
    copies = [await _copies(backend, stream, placement, group) for group in groups]
    prices = [
        (*_price(then, now, (now.taken_ms - then.taken_ms) / 1000), copied)
        for then, now, (copied, _) in zip(before, after, copies, strict=True)
    ]
    print_table(("group", "waits for", "at today's rate", "then copies"), prices)
    for group, (_, no_keys) in zip(groups, copies, strict=True):
        if no_keys:
            what = (
                "1 field of ctx.state is no key"
                if len(no_keys) == 1
                else f"{len(no_keys):,} fields of ctx.state are no keys"
            )
            say(f"{group}: {what}: {_some(sorted(no_keys))}.")
    if readers := sorted({reader.name for snapshot in after for reader in snapshot.readers}):
        say(f"Spark: {', '.join(readers)} read the new partitions from their next batch on.")
    names = {app.name, *(run_of(member.id) for snapshot in after for member in snapshot.members)}
    old_clients = await health.of_earlier_releases(backend, names)
    if old_clients is None:
        say("This user may not list connections: look yourself whether all programs run this release.")
    elif old_clients:
        say(
            f"{counted(len(old_clients), 'connection')} of earlier releases: {_some(old_clients)}. What "
            "they send is refused and not written, and their workers take none of the new partitions."
        )
    else:
        say("No program of an earlier release is connected.")
    return old_clients


async def _copies(
    backend: Backend, stream: Stream[Any], placement: Placement, group: str
) -> tuple[str, set[str]]:
    """Return in words what moves to the new partitions, and which fields of the state belong to no key.

    A field is a key if it is in the partition of that key.
    """
    keys = GroupKeys(stream.app.name, stream.name, group)
    assert isinstance(stream.app, App)
    spec = stream.app.registry.processors.get(group)
    moved = dict[str, int]()
    for table in spec.tables if spec and spec.stream.name == stream.name else ():
        asked = [("HLEN", keys.table(p, table.name)) for p in placement.active]
        moved[f"table {table.name}"] = sum(all_answered(await backend.pipeline(asked)))
    no_keys = set[str]()
    for p in placement.active:
        fields = [name for name in await read_state(backend, keys, p) if not name.startswith(TIMERS)]
        moved["ctx.state"] = moved.get("ctx.state", 0) + len(fields)
        no_keys |= {name for name in fields if placement.partition_of(name.encode()) != p}
    if not (total := sum(moved.values())):
        return "nothing", no_keys
    what = ", ".join(f"{counted(n, 'key')} of {of}" for of, n in moved.items() if n)
    return f"{what}: about {duration(-(-total * 1000 // COPIED_PER_S))}", no_keys


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX:,} more" if len(names) > NAMED_MAX else ""
    return f"{', '.join(names[:NAMED_MAX])}{more}"


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
