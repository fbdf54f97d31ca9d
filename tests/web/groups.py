"""Groups of any size as the page gets them, during the death of a worker."""

from collections.abc import Sequence
from dataclasses import replace

from streamworker.core.snapshot import GroupSnapshot, PartitionState, PauseView, Rebalance, RetryView
from streamworker.web.feed import Broadcast, Seen
from tests.tui.groups import group

START_MS = 1_795_766_400_000


async def nothing() -> Seen:
    raise AssertionError("The feed of this test is filled by hand.")


def fed(*groups: GroupSnapshot) -> Broadcast:
    """Return a feed that has seen these groups."""
    feed = Broadcast("shop", nothing)
    for each in groups:
        feed.arrived(seen([each]))
    return feed


def seen(groups: Sequence[GroupSnapshot]) -> Seen:
    facts = {"streams": {each.stream: len(each.partitions) for each in groups}, "letters": [], "timers": []}
    return Seen(groups, [], {**facts, "hidden": []})


def at(second: int, partitions: int, workers: int) -> GroupSnapshot:
    """Return a busy group at a second of its life: from the tenth second on its second worker is dead."""
    now_ms = START_MS + 1000 * second
    calm = group(
        partitions=partitions, workers=workers, at_ms=now_ms, committed=50 * second, lag=7 * (second % 9)
    )
    views = [
        replace(view, lag=(view.partition * 37 + second) % 90 * (view.partition % 5 == 0))
        for view in calm.partitions
    ]
    views[0] = replace(views[0], pause=PauseView(now_ms, "ann", "the mail server moves"), state="paused")
    if len(views) > 5:
        views[5] = replace(views[5], state="halted", reason="record 1795766400000-0: ValueError: no price")
        retry = RetryView(3, now_ms - 4000, now_ms + 2000)
        views[4] = replace(views[4], state="retrying", reason="ConnectError: refused", retry=retry)
    members, changes = list(calm.members), [replace(calm.rebalances[0], at_ms=START_MS - 9_000)]
    if second >= 10 and workers > 1:
        lost = members.pop(1)
        heirs = [member.id for member in members]
        for turn, p in enumerate(lost.partitions):
            heir, is_taken = heirs[turn % len(heirs)], turn < second - 10
            state: PartitionState = "running" if is_taken else "acquiring"
            views[p] = replace(views[p], owner=heir if is_taken else None, assigned=heir, state=state)
        moved_ms = 95 if len(lost.partitions) <= second - 10 else None
        changes.append(Rebalance(9, "death", lost.name, START_MS + 10_000, lost.partitions, moved_ms))
        members = [
            replace(each, partitions=tuple(v.partition for v in views if v.owner == each.id))
            for each in members
        ]
    return replace(calm, members=tuple(members), partitions=tuple(views), rebalances=tuple(changes))
