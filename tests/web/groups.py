"""Groups of any size as the page gets them, during the death of a worker."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from streamworker.cli.graph import Edge
from streamworker.core.snapshot import GroupSnapshot, PartitionState, PauseView, Rebalance, RetryView
from streamworker.web.broadcast import Broadcast, Seen
from tests.tui.groups import group

START_MS = 1_795_766_400_000


async def nothing() -> Seen:
    raise AssertionError("The feed of this test is filled by hand.")


def fed(*groups: GroupSnapshot, app: str = "shop") -> Broadcast:
    """Return a feed that has seen these groups."""
    feed = Broadcast(app, nothing)
    for each in groups:
        feed.arrived(seen([each]))
    return feed


def seen(groups: Sequence[GroupSnapshot]) -> Seen:
    facts = {"streams": {each.stream: len(each.partitions) for each in groups}, "letters": [], "timers": []}
    return Seen(groups, edges(groups[0]), {**facts, "hidden": {}})


def edges(group: GroupSnapshot) -> list[dict[str, Any]]:
    """Return the edges of an app with this group in its middle."""
    ways = [
        ("orders", "price()", "reads", group.lag),
        ("price()", "priced", "sends", 0),
        ("priced", "sum_up()", "reads", 12),
        ("price()", "lake()", "spark", 40),
        ("price()", "warehouse()", "spark", 90_400),
    ]
    failed = {"warehouse()": 'FAILED 3 m 02 s ago: password authentication failed for user "etl"'}
    return [
        asdict(Edge(start, end, kind, 412.0, waiting, 14_000, "", failed.get(end, "")))
        for start, end, kind, waiting in ways
    ]


def at(second: int, partitions: int, workers: int, killed: int = 10) -> GroupSnapshot:
    """Return a busy group at a second of its life; since `killed` its second worker is dead."""
    now_ms = START_MS + 1000 * second
    calm = group(
        partitions=partitions, workers=workers, at_ms=now_ms, committed=50 * second, lag=7 * (second % 9)
    )
    lags = [(p * 37 + second) % 90 if p % 5 == 0 else 0 for p in range(partitions)]
    views = [
        replace(view, checkpoint=f"{now_ms - 2_000}-0", lag=lags[view.partition]) for view in calm.partitions
    ]
    pause = PauseView(now_ms, "ann", "the mail server moves")
    views[0] = replace(views[0], dead=second // 4, pause=pause, state="paused")
    if len(views) > 5:
        views[5] = replace(views[5], state="halted", reason="record 1795766400000-0: ValueError: no price")
        retry = RetryView(3, now_ms - 4000, now_ms + 2000)
        views[4] = replace(views[4], state="retrying", reason="ConnectError: refused", retry=retry)
    members, changes = list(calm.members), [replace(calm.rebalances[0], at_ms=START_MS - 9_000)]
    if second >= killed and workers > 1:
        lost = members.pop(1)
        heirs = [member.id for member in members]
        for turn, p in enumerate(lost.partitions):
            heir, is_taken = heirs[turn % len(heirs)], turn < second - killed
            state: PartitionState = "running" if is_taken else "acquiring"
            views[p] = replace(views[p], owner=heir if is_taken else None, assigned=heir, state=state)
        moved_ms = 95 if len(lost.partitions) <= second - killed else None
        changes.append(Rebalance(9, "death", lost.name, START_MS + 1000 * killed, lost.partitions, moved_ms))
        members = [
            replace(each, partitions=tuple(v.partition for v in views if v.owner == each.id))
            for each in members
        ]
    return replace(calm, members=tuple(members), partitions=tuple(views), rebalances=tuple(changes))
