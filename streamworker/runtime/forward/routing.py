"""The way of rows from the call that made them to the messages of a commit.

``Routes`` encodes the rows that a processor sends to other streams, and chooses their partitions. Both happen
as part of the call that made the rows, so that a row that cannot be sent fails that call. ``OutboxWriter``
then turns the routed rows of one partition into the messages that its next commit writes to its outbox.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
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

    def __init__(self, into: Targets, row_bytes_max: int) -> None:
        self.into = into
        self._row_bytes_max = row_bytes_max
        self._known: dict[str, _Route] = {}

    def also(self, into: Targets) -> "Routes":
        """Return the ways from rows that go into other streams, in the same outbox."""
        other = Routes(into, self._row_bytes_max)
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

    def route(self, spec: StreamSpec) -> "_Route":
        """Return the way to a stream."""
        if (known := self._known.get(spec.name)) is None:
            known = self._known[spec.name] = _Route(spec, self._row_bytes_max)
        return known

    def named(self, stream: str) -> "_Route":
        """Return the way to a stream that rows went to before."""
        return self._known[stream]


class _Route:
    def __init__(self, spec: StreamSpec, row_bytes_max: int) -> None:
        self.spec = spec
        self._row_bytes_max = row_bytes_max
        record, codec, validate = spec.record, spec.codec, spec.validate
        self._encode = None if codec == "arrow" else record.encoder(codec, validate=validate)
        self._encode_list = None if codec == "arrow" else make_list_encoder(record, codec, validate=validate)
        self._packing = spec.packing
        self._packer: Any = None

    def add(
        self, to: Routed, rows: Sequence[Any], headers: Sequence[Headers] = (), own: Headers = None
    ) -> None:
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
        return [IN_TURN if key is None else self.spec.placement.partition_of(key) for key in raw]

    def args(self, entries: Sequence[Any]) -> list[Argument]:
        """Return what the target's script appends for entries of one partition."""
        if self._encode is not None:
            return records_args(entries, self._packing)
        from streamworker.redisio.data.columns import Packer  # pyarrow takes long to import

        if self._packer is None:
            self._packer = Packer(self.spec.record.arrow_schema())
        fields: Encoded = (self._packer.fields(self.spec.record.to_arrow(entries), "lz4"), None)
        return records_args([fields], "arrow")


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
        self._last = heads.last
        self._number = EntryId.parse(heads.last).ms if heads.last else 0
        self._positions = dict(heads.positions)
        self._sent: Counter[str] = Counter()
        for target, position in heads.positions.items():
            self._sent[target.stream] += position.records

    def write(self, routed: Routed) -> OutboxWrite:
        """Number and pack rows for the next commit, which must follow the one before."""
        after = self._last
        messages: list[Message] = []
        for (stream, partition), entries in routed.items():
            for to, its in self._dealt(stream, partition, entries):
                messages += self._messages(to, its)
        if messages:
            self._last = str(messages[-1].id)
        self.source.written_to = self.source.queues
        return OutboxWrite(after, messages, self._limit)

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
        # A row of a stream of columns is encoded in its message.
        sizes = [0] * len(entries) if route.spec.codec == "arrow" else list(map(_size_of, entries))
        for chunk in _chunks(entries, sizes, most):
            since = self._positions.get(to, START)
            data = pack_records(route.spec.records_max, route.args(chunk))
            through = since.after(len(chunk), data)
            self._number += 1
            self._positions[to] = through
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
