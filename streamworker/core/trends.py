"""What a row of snapshots of one group tells, and a single one does not: ages, counts, the workers it wants.

Redis keeps no time of what waits where a viewer may read it. Whoever looks often enough knows it from the
looks: what has arrived since a look is younger than it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.scaling import Scale, flow_of, follow
from streamworker.core.snapshot import GroupSnapshot

LOOKS_MAX = 64
"""Looks that are kept; if there are more, every second one is dropped, so that old ones get sparse."""
CAUSES = ("join", "leave", "death")
"""Causes of rebalances that are told before there was one: Prometheus needs the 0 to see the first."""


class Looks:
    """When some counts were seen; from that it follows how long the rest of them waits."""

    def __init__(self) -> None:
        self._looks: list[tuple[int, tuple[int, ...]]] = []

    def note(self, now_ms: int, arrived: tuple[int, ...]) -> None:
        """Note what has arrived in each partition by now; counts that fell begin anew."""
        if self._looks and (
            len(arrived) != len(self._looks[-1][1]) or sum(arrived) < sum(self._looks[-1][1])
        ):
            self._looks.clear()
        self._looks.append((now_ms, arrived))
        if len(self._looks) > LOOKS_MAX:
            del self._looks[1:-1:2]

    def waits_ms(self, now_ms: int, done: Sequence[int]) -> tuple[int, bool]:
        """Return how long the oldest that is not done waits, and whether that is an upper bound.

        It is a lower bound if it waited already at the first look.

        >>> looks = Looks()
        >>> looks.note(1_000, (5, 7)), looks.note(2_000, (8, 7)), looks.note(3_000, (9, 9))
        (None, None, None)
        >>> looks.waits_ms(3_500, (9, 9)), looks.waits_ms(3_500, (8, 7)), looks.waits_ms(3_500, (4, 9))
        ((0, True), (1500, True), (2500, False))
        """
        for index in range(len(self._looks) - 1, -1, -1):
            at_ms, arrived = self._looks[index]
            if all(there <= ours for there, ours in zip(arrived, done, strict=True)):
                return (0 if index == len(self._looks) - 1 else now_ms - at_ms), True
        return (now_ms - self._looks[0][0] if self._looks else 0), False


@dataclass(frozen=True, slots=True)
class Trend:
    """What is known of a group now."""

    oldest_ms: int
    """How long the oldest record waits that is not committed, at most; 0 if none waits."""
    readers_ms: Mapping[str, int]
    """How long the oldest row waits that a reader has not read, from the first look on."""
    rebalances: Mapping[str, int]
    """The rebalances since the first look, by cause; none of these counts falls."""
    desired: int
    """The workers that the group wants."""


class Trends:
    """Follows one group."""

    def __init__(self) -> None:
        self._records, self._rows = Looks(), Looks()
        self._rebalances = Counter(dict.fromkeys(CAUSES, 0))
        self._until_ms: int | None = None
        self._scale = Scale()
        self._last = Trend(0, {}, dict(self._rebalances), self._scale.desired)

    def follow(self, snapshot: GroupSnapshot) -> Trend:
        """Take the next snapshot; return what is known now.

        Partitions that Redis did not tell of look like a group that began anew: such a snapshot adds nothing.
        """
        if snapshot.unknown:
            return self._last
        now_ms, views = snapshot.taken_ms, snapshot.partitions
        self._records.note(now_ms, tuple(view.records + view.gone + view.lag for view in views))
        logs = snapshot.all_partitions
        self._rows.note(now_ms, tuple(view.rows for view in logs))
        newest_ms = max((change.at_ms for change in snapshot.rebalances), default=0)
        if self._until_ms is not None:
            since = [change.cause for change in snapshot.rebalances if change.at_ms > self._until_ms]
            self._rebalances.update(since)
        self._until_ms = max(newest_ms, self._until_ms or 0)
        self._scale = follow(self._scale, flow_of(snapshot), len(views))
        readers = {
            reader.name: self._rows.waits_ms(now_ms, [reader.positions.get(v.partition, 0) for v in logs])[0]
            for reader in snapshot.readers
        }
        oldest_ms, desired = self._oldest_ms(snapshot), self._scale.desired
        self._last = Trend(oldest_ms, readers, dict(self._rebalances), desired)
        return self._last

    def _oldest_ms(self, snapshot: GroupSnapshot) -> int:
        now_ms, views = snapshot.taken_ms, snapshot.partitions
        waits_ms, is_most = self._records.waits_ms(now_ms, [view.records + view.gone for view in views])
        begun = [EntryId.parse(view.checkpoint) for view in views if view.lag]
        if not begun:
            return 0
        if all(checkpoint > ZERO for checkpoint in begun):
            # What waits was sent after the last record that was committed.
            since_ms = max(0, now_ms - min(begun).ms)
            return min(waits_ms, since_ms) if is_most else since_ms
        return waits_ms
