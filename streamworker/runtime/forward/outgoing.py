"""What one partition sends to other streams: turns routed rows into the messages of a commit."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import START, Message, Target
from streamworker.redisio.data.outbox import Heads, OutboxWrite, pack_records
from streamworker.runtime.forward.forwarder import Source
from streamworker.runtime.forward.routing import IN_TURN, Routed, Routes
from streamworker.runtime.send.lane import APPEND_ENTRIES_MAX, Encoded, bytes_of

MESSAGE_BYTES_MAX = 512 * 1024
"""Bytes of a message before it is packed. The target's script takes it in one step, which blocks Redis."""


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
