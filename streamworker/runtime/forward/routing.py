"""The way of rows from the call that made them to the messages of a commit.

``Routes`` encodes the rows that a processor sends to other streams, and chooses their partitions. Both happen
as part of the call that made the rows, so that a row that cannot be sent fails that call. ``OutboxWriter``
then turns the routed rows of one partition into the messages that its next commit writes to its outbox.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, repeat
from types import MappingProxyType
from typing import Any

from streamworker.context import Sending
from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import START, Message, Target
from streamworker.core.data.placement import canonical_key
from streamworker.declaring.specs import StreamSpec, Targets
from streamworker.errors import ProcessingError, RecordError
from streamworker.records.codecs import short
from streamworker.records.lists import make_list_encoder
from streamworker.redisio.data.outbox import Heads, OutboxWrite, pack_records
from streamworker.redisio.data.streams import records_args
from streamworker.redisio.wire.link import Argument
from streamworker.runtime.forward.forwarder import Source
from streamworker.runtime.send.growth import StoredKeys
from streamworker.runtime.send.lane import APPEND_ENTRIES_MAX, Encoded, bytes_of
from streamworker.runtime.send.producer import HEADERS_MAX, header_fields
from streamworker.runtime.send.refusals import too_large

IN_TURN = -1
"""Stands for the partition of rows without a key, until their commit deals them out."""

MESSAGE_BYTES_MAX = 512 * 1024
"""Bytes of a message before it is packed. The target's script takes it in one step, which blocks Redis."""

Routed = dict[tuple[str, int], list[Any]]
"""By stream and partition, in order: encoded rows; for a stream of columns the rows themselves."""

Headers = Mapping[bytes, bytes] | None


class Routes:
    """The ways from the rows of one processor to other streams."""

    def __init__(
        self, into: Targets, row_bytes_max: int, streams: Mapping[str, StreamSpec] = MappingProxyType({})
    ) -> None:
        self.into = into
        self._row_bytes_max = row_bytes_max
        self._streams = streams
        self._known: dict[str, Route] = {}

    def also(self, into: Targets) -> "Routes":
        """Return the ways from rows that go into other streams, in the same outbox."""
        other = Routes(into, self._row_bytes_max, self._streams)
        other._known = self._known
        return other

    def routed(
        self, rows: Sequence[Any], sendings: Sequence[Sending], headers: Sequence[Headers] = ()
    ) -> Routed:
        """Return encoded rows by where they go; raise an error for a row that cannot go anywhere.

        ``headers`` has what each row carries of the record that it was made of; empty if none carries any.
        """
        found: Routed = {}
        into = self.into
        if isinstance(into, StreamSpec):
            if rows:
                self.route(into).add(found, rows, headers)
        elif into is not None:
            by_type: dict[type, tuple[list[Any], list[Headers]]] = {}
            for row, carried in zip(rows, headers or repeat(None)):  # noqa: B905 - one of them is endless
                of_kind = by_type.setdefault(type(row), ([], []))
                of_kind[0].append(row)
                of_kind[1].append(carried)
            for kind, (its, their_headers) in by_type.items():
                if kind not in into:
                    raise ProcessingError(
                        f"The function returned {short(its[0])}, and into= names no stream for that type.",
                        remedy=f"It has: {', '.join(sorted(each.__name__ for each in into))}.",
                    )
                self.route(into[kind]).add(found, its, their_headers if headers else ())
        for sending in sendings:
            own = header_fields(sending.headers)
            self.route(sending.stream).add(found, [sending.record], [joined(own, sending.carried)], own)
        return found

    def route(self, spec: StreamSpec) -> "Route":
        """Return the way to a stream."""
        if (known := self._known.get(spec.name)) is None:
            known = self._known[spec.name] = Route(spec, self._row_bytes_max)
        return known

    def named(self, stream: str) -> "Route":
        """Return the way to a stream that rows went to before."""
        return self._known[stream]

    def find(self, stream: str) -> "Route | None":
        """Return the way to a stream that rows of an earlier worker went to; None if no such is declared."""
        spec = self._streams.get(stream)
        return self.route(spec) if spec is not None else self._known.get(stream)


class Route:
    """The way to one stream."""

    def __init__(self, spec: StreamSpec, row_bytes_max: int) -> None:
        self.spec = spec
        self._row_bytes_max = row_bytes_max
        record, codec, validate = spec.record, spec.codec, spec.validate
        self._encode = None if codec == "arrow" else record.encoder(codec, validate=validate)
        self._encode_list = None if codec == "arrow" else make_list_encoder(record, codec, validate=validate)
        self.packing = spec.packing
        self._packer: Any = None

    def add(
        self, to: Routed, rows: Sequence[Any], headers: Sequence[Headers] = (), own: Headers = None
    ) -> None:
        """Encode rows, and add them to those that go to the same partitions."""
        entries = self._entries(rows, headers, own)
        name = self.spec.name
        for partition, entry in zip(self._partitions(rows), entries, strict=True):
            if (known := to.get((name, partition))) is None:
                to[name, partition] = [entry]
            else:
                known.append(entry)

    def _entries(self, rows: Sequence[Any], headers: Sequence[Headers], own: Headers) -> Sequence[Any]:
        """Return encoded rows; ``own`` are the headers that a function has set itself."""
        if self._encode is None:
            if own:
                raise RecordError(
                    f"A record with headers was sent to {self.spec.name!r}, whose entries hold columns.",
                    remedy="Send it without headers.",
                )
            self.spec.record.to_arrow(rows)
            return rows
        payloads: Sequence[Any] | None = self._encode_list(rows) if self._encode_list is not None else None
        if payloads is None:
            payloads = list(map(self._encode, rows))
        for payload in payloads:
            size = len(payload) if isinstance(payload, bytes) else bytes_of(payload)
            if size > self._row_bytes_max:
                raise too_large("record", self.spec, size, self._row_bytes_max)
        if not any(headers) and isinstance(payloads[0], bytes):
            return payloads
        each: Iterable[Headers] = headers or repeat(None)
        return list(zip(payloads, each))  # noqa: B905 - one of them is endless

    def _partitions(self, rows: Sequence[Any]) -> Sequence[int]:
        keys: list[Any] = list(map(self.spec.key, rows))
        if (known := self.spec.placement.partitions_of_texts(keys)) is not None:
            return known
        raw = map(canonical_key, keys)  # It says which key is wrong, if one is.
        return list(map(self._partition, raw))

    def args(self, entries: Sequence[Any]) -> list[Argument]:
        """Return what the target's script appends for entries of one partition."""
        if self._encode is not None:
            return records_args(entries, self.packing)
        from streamworker.redisio.data.columns import Packer  # pyarrow takes long to import

        if self._packer is None:
            self._packer = Packer(self.spec.record.arrow_schema())
        packed: list[Encoded] = [each for each in entries if type(each) is tuple]
        if rows := [each for each in entries if type(each) is not tuple]:
            packed.append((self._packer.fields(self.spec.record.to_arrow(rows), "lz4"), None))
        return records_args(packed, "arrow")

    # -- when the stream has grown ---------------------------------------------------------------

    def anew(self, old: int, entries: Sequence[Any]) -> tuple[Routed, int]:
        """Return entries that were routed to a partition which takes no more by where they go now.

        The second value is how many records have no key that can be read. No consumer can read them either,
        and they go to the first partition that follows.
        """
        placement = self.spec.placement
        found: Routed = {}
        unread = 0
        for entry in entries:
            try:
                shares = self._shares(entry)
            except Exception:  # noqa: BLE001 - whatever a user's key function or codec raises
                shares = {next(p for p in placement.active if old in placement.ancestors_of(p)): [entry]}
                unread += 1
            for partition, its in shares.items():
                found.setdefault((self.spec.name, partition), []).extend(its)
        return found, unread

    @cached_property
    def _keys(self) -> StoredKeys:
        return StoredKeys(self.spec)

    def _shares(self, entry: Any) -> dict[int, list[Any]]:
        if self._encode is not None:
            return {self._partition(self._keys.of(entry)): [entry]}
        if type(entry) is not tuple:  # A row that is not encoded yet.
            return {self._partition(canonical_key(self.spec.key(entry))): [entry]}
        from streamworker.redisio.data.columns import Packer, unpacked

        batch = unpacked(entry[0])
        record, by = self.spec.record, dict[int, list[int]]()
        for index, row in enumerate(record.from_arrow(record.fit_arrow(batch, extra="drop"))):
            by.setdefault(self._partition(canonical_key(self.spec.key(row))), []).append(index)
        packer = Packer(batch.schema)
        return {partition: [(packer.fields(batch.take(its), "lz4"), None)] for partition, its in by.items()}

    def _partition(self, key: bytes | None) -> int:
        return IN_TURN if key is None else self.spec.placement.partition_of(key)


def joined(own: Headers, carried: Headers) -> Headers:
    """Return the headers that a record is sent with: its own, and as many of those that it carries as fit."""
    if not carried:
        return own
    rest = {name: value for name, value in carried.items() if not own or name not in own}
    return {**dict(islice(rest.items(), HEADERS_MAX - len(own or ()))), **(own or {})}


class OutboxWriter:
    """The messages of one outbox, as its owner numbers them, and the way on which they are forwarded."""

    def __init__(self, routes: Routes, source: Source, heads: Heads, *, turn: int, limit: int) -> None:
        self.source = source
        self.routes = routes
        self._limit = limit
        self._turn = turn
        """Where rows without a key begin: each source begins elsewhere."""
        self._sent: Counter[str] = Counter()
        for target, position in heads.positions.items():
            self._sent[target.stream] += position.records
        self.go_on(heads)

    def go_on(self, heads: Heads) -> None:
        """Number what comes after what is in the outbox."""
        self.last = heads.last
        """Id of the last message."""
        self._number = EntryId.parse(heads.last).ms if heads.last else 0
        self.positions = dict(heads.positions)
        """How far the history of each target has come."""

    def write(self, routed: Routed) -> OutboxWrite:
        """Number and pack rows for the next commit, which must follow the one before."""
        after, messages = self.last, self.messages(routed)
        self.source.written_to = self.source.queues
        return OutboxWrite(after, messages, self._limit)

    def messages(self, routed: Routed) -> list[Message]:
        """Return the next messages, with some rows."""
        messages: list[Message] = []
        for (stream, partition), entries in routed.items():
            for to, its in self._dealt(stream, partition, entries):
                messages += self._messages(to, its)
        if messages:
            self.last = str(messages[-1].id)
        return messages

    def _dealt(
        self, stream: str, partition: int, entries: list[Any]
    ) -> Iterator[tuple[Target, Sequence[Any]]]:
        """Deal rows without a key out in turn, which goes on from all that was sent to the stream."""
        start = self._turn + self._sent[stream]
        self._sent[stream] += len(entries)
        if partition != IN_TURN:
            yield Target(stream, partition), entries
            return
        active = self.routes.named(stream).spec.placement.active
        count = len(active)
        for first in range(min(count, len(entries))):
            yield Target(stream, active[(start + first) % count]), entries[first::count]

    def _messages(self, to: Target, entries: Sequence[Any]) -> Iterator[Message]:
        route = self.routes.named(to.stream)
        most = min(APPEND_ENTRIES_MAX, route.spec.records_max)
        sizes = list(map(_size_of_rows if route.spec.codec == "arrow" else _size_of, entries))
        for chunk in _chunks(entries, sizes, most):
            since = self.positions.get(to, START)
            args = route.args(chunk)
            data = pack_records(route.spec.records_max, args)
            through = since.after(int(args[0]), data)
            self._number += 1
            self.positions[to] = through
            yield Message(self._number, to, since, through, data)


def _chunks(entries: Sequence[Any], sizes: Sequence[int], most: int) -> Iterator[Sequence[Any]]:
    """Cut entries into lists of at most ``most`` entries and about ``MESSAGE_BYTES_MAX`` bytes."""
    start = size = 0
    for index, its_size in enumerate(sizes):
        if index > start and (index - start >= most or size + its_size > MESSAGE_BYTES_MAX):
            yield entries[start:index]
            start, size = index, 0
        size += its_size
    yield entries[start:]


def _size_of(entry: Encoded) -> int:
    payload, headers = (entry, None) if isinstance(entry, bytes) else entry
    size = len(payload) if isinstance(payload, bytes) else bytes_of(payload)
    return size + (bytes_of(headers) if headers else 0)


def _size_of_rows(entry: Any) -> int:
    # Rows are encoded in their message; an entry that is encoded has one by itself.
    return MESSAGE_BYTES_MAX if type(entry) is tuple else 0
