"""Moments in which a fault may take back what was confirmed in some partitions, and who said what is gone.

A failover to a replica that had not received everything loses the end of what was confirmed: entries,
checkpoints, locks and logs of the partitions of one primary, all of one moment. Nobody can help that; but
each producer must say which of its sends are gone, and what is left must fit together.
"""

from collections import defaultdict
from collections.abc import Sequence

from tests.chaos.dump import Id, parse_id
from tests.chaos.history import Event

BEFORE_MS = 3_000
"""How far a replica that followed may have been behind."""
LATE_MS = 8_000
"""An answer of before may be read so late: by a process that was stopped, or slow."""


class Lapses:
    """What the faults that may lose something may have cost, and what was said of it."""

    def __init__(self, history: Sequence[Event]) -> None:
        self.spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
        """Of each partition, from when until when what was confirmed may be gone."""
        begun: dict[int, Event] = {}
        for event in history:
            if event.kind != "fault" or not event["may_lose"]:
                continue
            if event["what"] == "begin":
                begun[event["number"]] = event
            elif (first := begun.pop(event["number"], None)) is not None:
                self._add(first, event.at)
        for first in begun.values():  # It never ended.
            self._add(first, float("inf"))
        self._lost: dict[tuple[str, int], list[tuple[float, Id, Id]]] = defaultdict(list)
        self._verified: set[str] = set()
        self._heard: dict[tuple[str, int], float] = {}
        self.reported = 0
        """Sends that producers reported as lost."""
        for event in history:
            if event.kind == "lost":
                said = (event.at, parse_id(event["first"]), parse_id(event["last"]))
                self._lost[event["producer"], event["partition"]].append(said)
                self.reported += event["entries"]
            elif event.kind == "verified":
                self._verified.add(event["producer"])
            elif event.kind == "send" and event["what"] == "ok":
                for partition, _ in event["places"]:
                    self._heard[event["producer"], partition] = event.at

    def _add(self, first: Event, end_ms: float) -> None:
        for partition in first["may_lose"]:
            self.spans[partition].append((first.at, end_ms))

    def covers(self, partition: int, at: float) -> bool:
        """Whether what was confirmed at a moment may have been taken back."""
        return self._after(partition, at) is not None

    def _after(self, partition: int, at: float) -> float | None:
        ends = [end for start, end in self.spans[partition] if start - BEFORE_MS <= at <= end + LATE_MS]
        return max(ends, default=None)

    def lives(self, partition: int, at: float) -> int | None:
        """Return how many such faults were over at a moment: epochs may be given again after each.

        None in one, and shortly after it: nobody can tell what of it was taken back.
        """
        spans = self.spans[partition]
        if any(start <= at <= end + LATE_MS for start, end in spans):
            return None
        return sum(end < at for _, end in spans)

    def is_said(self, producer: str, partition: int, entry_id: Id, since: float = float("-inf")) -> bool:
        """Whether a producer said, at a moment or later, that what has this id is lost."""
        said = self._lost[producer, partition]
        return any(at >= since and first <= entry_id <= last for at, first, last in said)

    def could_be_said(self, producer: str, partition: int, at: float) -> bool:
        """Whether a producer has lived to notice: it asked in the end, or sent there again later."""
        after = self._after(partition, at)
        heard = self._heard.get((producer, partition), float("-inf"))
        return producer in self._verified or (after is not None and heard > after + LATE_MS)
