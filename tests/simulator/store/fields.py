"""The commands of hashes and of sorted sets."""

from bisect import bisect_right
from itertools import chain

from tests.simulator.store.keyspace import Keyspace
from tests.simulator.store.values import Hash, Refused, SortedSet, integer, number_text


class Fields(Keyspace):
    """Hashes and sorted sets; an empty one is no key."""

    def do_hget(self, key: bytes, field: bytes) -> bytes | None:
        return (self.find_as(key, Hash) or Hash()).get(field)

    def do_hmget(self, key: bytes, *fields: bytes) -> tuple[bytes | None, ...]:
        found = self.find_as(key, Hash) or Hash()
        return tuple([found.get(field) for field in fields])

    def do_hgetall(self, key: bytes) -> tuple[bytes, ...]:
        return tuple(chain.from_iterable((self.find_as(key, Hash) or Hash()).items()))

    def do_hexists(self, key: bytes, field: bytes) -> int:
        return int(field in (self.find_as(key, Hash) or ()))

    def do_hlen(self, key: bytes) -> int:
        return len(self.find_as(key, Hash) or ())

    def do_hset(self, key: bytes, *flat: bytes) -> int:
        _check_pairs(flat, "hset")
        found = self.own(key, self.find_as(key, Hash) or Hash())
        before = len(found)
        found.update(zip(flat[::2], flat[1::2], strict=True))
        return len(found) - before

    def do_hsetnx(self, key: bytes, field: bytes, value: bytes) -> int:
        return 0 if self.do_hexists(key, field) else self.do_hset(key, field, value)

    def do_hincrby(self, key: bytes, field: bytes, by: bytes) -> int:
        step = integer(by)
        stored = self.do_hget(key, field)
        total = step if stored is None else integer(stored, "ERR hash value is not an integer") + step
        if not -(2**63) <= total < 2**63:
            raise Refused("ERR increment or decrement would overflow")
        self.do_hset(key, field, b"%d" % total)
        return total

    def do_hdel(self, key: bytes, *fields: bytes) -> int:
        found = self.find_as(key, Hash)
        if found is None or not any(field in found for field in fields):
            return 0
        found = self.own(key, found)
        removed = sum(found.pop(field, None) is not None for field in fields)
        if not found:
            self.drop(key)
        return removed

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
        assert (start, end) == (b"0", b"0")
        order = (self.find_as(key, SortedSet) or SortedSet()).order
        return tuple([part for score, member in order[:1] for part in (member, number_text(score))])


def _check_pairs(flat: tuple[bytes, ...], command: str) -> None:
    if not flat or len(flat) % 2:
        raise Refused(f"ERR wrong number of arguments for '{command}' command")


def _score(raw: bytes) -> float:
    try:
        return float(raw)
    except ValueError:
        raise Refused("ERR value is not a valid float") from None
