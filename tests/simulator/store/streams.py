"""The commands of streams.

Nodes hold one entry each, as with ``stream-node-max-entries 1``: a trim with ``~`` is exact, up to its LIMIT.
"""

from bisect import bisect_left, bisect_right
from typing import Any

from tests.simulator.store.keyspace import Keyspace
from tests.simulator.store.values import (
    MAX_PART,
    ZERO,
    ConsumerGroup,
    Id,
    Refused,
    Stream,
    id_text,
    integer,
    parse_id,
)

TOP = (MAX_PART, MAX_PART)


class Streams(Keyspace):
    """Streams; an empty one stays a key."""

    def do_xlen(self, key: bytes) -> int:
        stream = self.find_as(key, Stream)
        return 0 if stream is None else len(stream.ids)

    def do_xadd(self, key: bytes, *words: bytes) -> bytes:
        most = None
        if words[0] == b"MAXLEN":
            words = words[2:] if words[1] in (b"~", b"=") else words[1:]
            most, words = integer(words[0]), words[1:]
        at, *fields = words
        if not fields or len(fields) % 2:
            raise Refused("ERR wrong number of arguments for 'xadd' command")
        stream = self.find_as(key, Stream)
        new = self._new_id(at, ZERO if stream is None else stream.last)
        stream = self.own(key, stream or Stream())
        stream.ids.append(new)
        stream.entries.append((id_text(new), tuple(fields)))
        stream.last = new
        stream.added += 1
        if most is not None:
            stream.drop_first(max(0, len(stream.ids) - most))
        return id_text(new)

    def _new_id(self, at: bytes, last: Id) -> Id:
        if last == TOP:
            raise Refused("ERR The stream has exhausted the last possible ID, unable to add more items")
        if at == b"*":
            return max((self.now_ms(), 0), (last[0], last[1] + 1))
        if at == b"0-0":
            raise Refused("ERR The ID specified in XADD must be greater than 0-0")
        ms = parse_id(at.removesuffix(b"-*"))[0]
        new = (ms, last[1] + 1 if ms == last[0] else 0) if at.endswith(b"-*") else parse_id(at)
        if new <= last:
            raise Refused("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        return new

    def do_xsetid(self, key: bytes, last: bytes, *words: bytes) -> bytes:
        assert words[0] == b"ENTRIESADDED"
        stream = self.find_as(key, Stream)
        if stream is None:
            raise Refused("ERR no such key")
        at = parse_id(last)
        if stream.ids and at < stream.ids[-1]:
            raise Refused("ERR The ID specified in XSETID is smaller than the target stream top item")
        if integer(words[1]) < len(stream.ids):
            raise Refused("ERR The entries_added specified in XSETID is smaller than the length")
        stream = self.own(key, stream)
        stream.last, stream.added = at, integer(words[1])
        return b"OK"

    def do_xrange(self, key: bytes, start: bytes, end: bytes, *count: bytes) -> tuple[Any, ...]:
        """Return for each entry its id, how many fields and values it has, and these."""
        low, after = _bound(start)
        high = TOP if end == b"+" else parse_id(end, MAX_PART)
        stream = self.find_as(key, Stream)
        if stream is None:
            return ()
        first = (bisect_right if after else bisect_left)(stream.ids, low)
        past = bisect_right(stream.ids, high)
        if count:
            past = min(past, first + integer(count[1]))
        flat: list[Any] = []
        for at, fields in stream.entries[first:past]:
            flat += (at, len(fields), *fields)
        return tuple(flat)

    def do_xtrim(self, key: bytes, how: bytes, *words: bytes) -> int:
        at, *limit = words[1:] if words[0] in (b"~", b"=") else words
        stream = self.find_as(key, Stream)
        if stream is None:
            return 0
        if how == b"MAXLEN":
            count = max(0, len(stream.ids) - integer(at))
        else:
            assert how == b"MINID"
            count = bisect_left(stream.ids, parse_id(at))
        if limit and integer(limit[1]) > 0:
            count = min(count, integer(limit[1]))
        if count:
            self.own(key, stream).drop_first(count)
        return count

    def do_xdel(self, key: bytes, *texts: bytes) -> int:
        ids = [parse_id(raw) for raw in texts]
        stream, count = self.find_as(key, Stream), 0
        for at in ids if stream is not None else ():
            assert stream is not None
            place = bisect_left(stream.ids, at)
            if stream.ids[place : place + 1] == [at]:
                stream = self.own(key, stream)
                del stream.ids[place], stream.entries[place]
                stream.max_deleted = max(stream.max_deleted, at)
                count += 1
        return count

    def do_xinfo(self, what: bytes, key: bytes) -> tuple[Any, ...]:
        """Return what the bridge makes the answer of: of each group, or of the stream and both its ends."""
        stream = self.find_as(key, Stream)
        if stream is None:
            raise Refused("ERR no such key")
        if what == b"GROUPS":
            groups = stream.groups.items()
            return what, *(part for name, each in groups for part in (name, id_text(each.last), each.read))
        assert what == b"STREAM"
        ends = [stream.entries[-1][0], stream.entries[0][0], *stream.entries[0][1]] if stream.entries else []
        return what, len(stream.ids), id_text(stream.last), id_text(stream.max_deleted), stream.added, *ends

    def do_xpending(self, key: bytes, name: bytes) -> tuple[Any, ...]:
        """Return that no entry is pending."""
        stream = self.find_as(key, Stream)
        if stream is None or name not in stream.groups:
            raise Refused("NOGROUP No such key or consumer group")
        return 0, None, None, None

    def do_xgroup(self, what: bytes, key: bytes, name: bytes, *words: bytes) -> bytes | int:
        stream = self.find_as(key, Stream)
        if stream is None and b"MKSTREAM" not in words:
            raise Refused("ERR The XGROUP subcommand requires the key to exist.")
        known = stream is not None and name in stream.groups
        if what == b"DESTROY":
            if stream is not None and known:
                del self.own(key, stream).groups[name]
            return int(known)
        if what == b"SETID" and not known:
            raise Refused("NOGROUP No such consumer group")
        last = stream.last if stream is not None else ZERO
        group = ConsumerGroup(last if words[0] == b"$" else parse_id(words[0]), _entries_read(words))
        if what == b"CREATE" and known:
            raise Refused("BUSYGROUP Consumer Group name already exists")
        stream = self.own(key, stream or Stream())
        stream.groups[name] = group
        return b"OK"


def _bound(start: bytes) -> tuple[Id, bool]:
    """Return the id at which a range begins, and whether after it."""
    if start == b"-":
        return ZERO, False
    after = start.startswith(b"(")
    at = parse_id(start.removeprefix(b"("))
    if after and at == TOP:
        raise Refused("ERR invalid start ID for the interval")
    return at, after


def _entries_read(words: tuple[bytes, ...]) -> int | None:
    if b"ENTRIESREAD" not in words:
        return None
    read = integer(words[words.index(b"ENTRIESREAD") + 1])
    if read < -1:
        raise Refused("ERR value for ENTRIESREAD must be positive or -1")
    return None if read == -1 else read
