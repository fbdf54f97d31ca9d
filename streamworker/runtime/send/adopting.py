"""Takes the entries of a stream that other programs fill, each once, in order by key.

The owner of the first partition that takes records does this, for any processor of the stream. Two of them
do no harm: each partition takes a piece only if it stands where the piece begins.

If the stream grows, an entry is handed to the partition that has its key now, unless one that had the key
before has taken it. A sealed partition stands still: its mark, read after the map, is the last one.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import anyio
from structlog.stdlib import BoundLogger

from streamworker.core.data.channel import AppendCode
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.placement import Placement, canonical_key
from streamworker.core.pauses import Pauses
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import BackendError, BackendRefused, RecordError
from streamworker.redisio.data import adopted
from streamworker.redisio.data.adopted import START, Fields, Piece, SourcePosition
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import Durability
from streamworker.runtime.send.growth import follow_map
from streamworker.runtime.telling import CountLost, tell_lost, warn

READ_ENTRIES = 500
"""Entries that one look takes: some milliseconds of the event loop and of the server."""
IDLE_S = 0.1
"""Pause while nothing new is there: how late an entry may be taken."""
ELSEWHERE_S = 1.0
"""How often it is looked whether this worker has become the owner of the first partition."""


@dataclass(eq=False)
class Adopter:
    """Reads one stream of other programs."""

    backend: Backend
    spec: StreamSpec
    durability: Durability
    random: Callable[[], float]
    log: BoundLogger
    on_trouble: Callable[[str], None]
    """Called each second with why nothing is taken, for `status`, and with an empty reason afterwards."""
    count_lost: CountLost | None = None

    def __post_init__(self) -> None:
        self._keys = StreamKeys(self.spec.app, self.spec.name)
        self._pauses = Pauses(self.random)
        self._log = self.log.bind(source=self.spec.source)
        assert self.spec.codec != "arrow"
        self._decode = self.spec.record.decoder(self.spec.codec)
        self._position: SourcePosition | None = None
        self._kept = SourcePosition()
        """The position that is stored, as far as this worker knows."""
        self._stands: dict[int, str] = {}
        self._placement = self.spec.placement
        """The partitions as they were when their marks were read."""
        self._told = ""
        self._stood = False

    async def run(self, owned: Callable[[], Collection[int]]) -> None:
        """Take entries while this worker owns the first partition, and so on for ever."""
        while True:
            if self.spec.placement.base not in owned():
                self._position = None
                await anyio.sleep(ELSEWHERE_S)
                continue
            try:
                pause_s = await self._step()
                self._pauses.reset()
            except BackendError as error:
                self._position = None
                pause_s = self._pauses.next_ms() / 1000
                warn(self._log, "source_unread", error)
                if isinstance(error, BackendRefused):  # Such as for a key of another type.
                    self._stand(str(error))
            await anyio.sleep(pause_s)

    async def _step(self) -> float:
        """Take one look's entries; return how long to pause."""
        source = self.spec.source
        if self._position is None or self._placement.counts != self.spec.placement.counts:
            self._placement = Placement(*self.spec.placement.counts)
            found = await adopted.standing(self.backend, self._keys, source, self._placement.total)
            self._position, self._stands = found
            self._kept = self._position
        taken = max(map(_taken, self._stands.values()), default=ZERO)
        look = await adopted.look(self.backend, source, self._position, READ_ENTRIES, taken)
        if look.trouble:
            self._position = None  # Another worker may have stored it since, with the tag of its entry.
            self._tell("source_went_back", f"{look.trouble}; nothing is taken until it is right again")
            self._stand(look.trouble)
            return ELSEWHERE_S
        if self._stood:
            self.on_trouble("")
            self._stood = False
        if look.dropped:
            if not await self._keep(look.position):
                return 0.0
            reason = f"{look.dropped} entries were dropped before they were taken"
            tell_lost(self._log, "source_trimmed", self.count_lost, look.dropped, reason=reason)
        self._position = look.position
        if not look.entries or not await self._hand_over(look.entries):
            return IDLE_S
        await self._keep(look.end)
        return 0.0

    def _stand(self, trouble: str) -> None:
        self.on_trouble(f"nothing is taken from {self.spec.source}: {trouble}")
        self._stood = True

    async def _keep(self, position: SourcePosition) -> bool:
        """Go on from a position, unless another worker has stored one since; then go on from that."""
        kept = await adopted.keep_position(self.backend, self._keys, self.spec.source, self._kept, position)
        self._kept, self._position = position, position if kept else None
        return kept

    async def _hand_over(self, entries: list[tuple[EntryId, Fields]]) -> bool:
        """Return whether all partitions have their entries; those that have, do not take them again."""
        waiting: dict[int, list[tuple[EntryId, Fields]]] = {}
        for entry_id, fields in entries:
            path = self._path_of(entry_id, fields)
            if all(_taken(self._stands[partition]) < entry_id for partition in path):
                waiting.setdefault(path[-1], []).append((entry_id, fields))
        pieces = [
            Piece(partition, self._stands[partition], str(mine[-1][0]), [fields for _, fields in mine])
            for partition, mine in waiting.items()
        ]
        if not pieces:
            return True
        replies = await adopted.hand_over(
            self.backend,
            self._keys,
            self.spec.source,
            pieces,
            limit=self.spec.records_max,
            durability=self.durability,
        )
        for piece, reply in zip(pieces, replies, strict=True):
            if reply.code is AppendCode.SEALED:
                self._position = None  # It may be long until the map says which partitions follow.
                await follow_map(self.backend, self.spec)
                return False
            if reply.error is not None:
                raise reply.error
            if reply.code is not AppendCode.FULL:
                stands = piece.end if reply.is_there else reply.value.decode()
                self._went_back(piece, stands)
                self._stands[piece.partition] = stands
        return all(self._stands[piece.partition] == piece.end for piece in pieces)

    def _went_back(self, piece: Piece, stands: str) -> None:
        """Read again from where a partition stands that a failover has put back."""
        back = max(_taken(stands), self._taken_before(piece.partition))
        if self._position is not None and back < _taken(piece.begin):
            self._tell("source_read_again", f"partition {piece.partition} has gone back to {back}")
            self._position = SourcePosition(min(back, self._position.id))

    def _taken_before(self, partition: int) -> EntryId:
        """Return up to where the partitions that one follows have taken all of its keys."""
        parents = self._placement.parents_of(partition)
        each = (max(_taken(self._stands[p]), self._taken_before(p)) for p in parents)
        return min(each, default=ZERO)

    def _path_of(self, entry_id: EntryId, fields: Fields) -> tuple[int, ...]:
        """Return the partitions that an entry had; without a key, or without a record, its id decides."""
        try:
            record = self._decode(dict(zip(fields[::2], fields[1::2], strict=True)))
            key = canonical_key(self.spec.key(record))
        except RecordError:
            key = None
        return self._placement.path_of(str(entry_id).encode() if key is None else key)

    def _tell(self, event: str, reason: str) -> None:
        if self._told != reason:
            self._told = reason
            self._log.error(event, reason=reason)


def _taken(stands: str) -> EntryId:
    """Return the last entry that a partition has taken, from where it stands."""
    return ZERO if stands == START else EntryId.parse(stands)
