"""The commands of sorted sets."""

from bisect import bisect_right

from tests.simulator.store.keyspace import Keyspace
from tests.simulator.store.values import Refused, SortedSet, integer, number_text


class SortedSets(Keyspace):
    """Sorted sets; an empty one is no key."""

    def do_zadd(self, key: bytes, *flat: bytes) -> int:
        _check_pairs(flat, "zadd")
        scores = [_score(raw) for raw in flat[::2]]
        found = self.own(key, self.find_as(key, SortedSet) or SortedSet())
        return sum(map(found.add, flat[1::2], scores))

    def do_zrem(self, key: bytes, *members: bytes) -> int:
        found = self.find_as(key, SortedSet)
        if found is None:
            return 0
        found = self.own(key, found)
        removed = sum(map(found.remove, members))
        if not found.scores:
            self.drop(key)
        return removed

    def do_zscore(self, key: bytes, member: bytes) -> bytes | None:
        score = (self.find_as(key, SortedSet) or SortedSet()).scores.get(member)
        return None if score is None else number_text(score)

    def do_zrangebyscore(
        self,
        key: bytes,
        low: bytes,
        high: bytes,
        _: bytes = b"LIMIT",
        offset: bytes = b"0",
        most: bytes = b"-1",
    ) -> tuple[bytes, ...]:
        assert low == b"-inf"
        assert integer(offset) == 0
        top, count = _score(high), integer(most)
        order = (self.find_as(key, SortedSet) or SortedSet()).order
        end = bisect_right(order, top, key=lambda each: each[0])
        return tuple([member for _, member in order[: end if count < 0 else min(end, count)]])

    def do_zrange(self, key: bytes, start: bytes, end: bytes, *how: bytes) -> tuple[bytes, ...]:
        assert how == (b"WITHSCORES",)
        assert start == b"0" and integer(end) >= 0
        order = (self.find_as(key, SortedSet) or SortedSet()).order[: integer(end) + 1]
        return tuple([part for score, member in order for part in (member, number_text(score))])


def _check_pairs(flat: tuple[bytes, ...], command: str) -> None:
    if not flat or len(flat) % 2:
        raise Refused(f"ERR wrong number of arguments for '{command}' command")


def _score(raw: bytes) -> float:
    try:
        return float(raw)
    except ValueError:
        raise Refused("ERR value is not a valid float") from None
