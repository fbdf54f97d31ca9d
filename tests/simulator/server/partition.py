"""What the store of the simulator holds of one partition, as somebody reads it who looks at the keys."""

from typing import TYPE_CHECKING, cast

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.outbox import Message, OutboxPosition, Target
from streamworker.redisio.data.outbox import heads_of, read_chains
from streamworker.redisio.keys import number
from streamworker.runtime.run.threads import in_one_step
from tests.simulator.server.stored import ENDS, ENDS_FIELD, TIMER_FIELD, Commit, Record, Witnessed
from tests.simulator.store.values import Hash, Stream

if TYPE_CHECKING:
    from tests.simulator.server.server import SimulatedServer

EMPTY = Hash()
NO_ENTRIES = Stream()


class Partition:
    """A partition: its lock, source stream, acked log, dead letters and outbox. It is read anew each time."""

    def __init__(self, server: "SimulatedServer", index: int) -> None:
        self._server, keys = server, server.keys
        self.outbox_keys = keys.outbox(index)
        self.lock_key, self.events_key = keys.lock(index).encode(), keys.events(index).encode()
        self._seen_key = b"witnessed:%d" % index
        self._acked_key, self._dead_key = keys.acked(index).encode(), keys.dead(index).encode()
        self._state_key = keys.state(index).encode()
        self.ends_keys = [key.encode() for key in keys.tables(index, {"ends": ENDS})]
        self._messages_key = self.outbox_keys.messages.encode()

    def _hash(self, key: bytes) -> Hash:
        found = self._server.store.peek(key)
        return found if isinstance(found, Hash) else EMPTY

    def _field(self, name: bytes) -> bytes:
        return self._server.store.field(self.lock_key, name) or b""

    def _stream(self, key: bytes) -> Stream:
        found = self._server.store.peek(key)
        return found if isinstance(found, Stream) else NO_ENTRIES

    # -- the lock ------------------------------------------------------------------------------

    @property
    def lock(self) -> Hash:
        """The fields of the lock."""
        return self._hash(self.lock_key)

    @property
    def owner(self) -> str:
        """Empty if nobody holds the lock."""
        return self._field(b"owner").decode()

    @property
    def epoch(self) -> int:
        """The epoch of the owner."""
        return number(self._field(b"epoch"))

    @property
    def generation(self) -> int:
        """The generation in which it was acquired."""
        return number(self._field(b"generation"))

    @property
    def checkpoint(self) -> EntryId:
        """The last record that is committed."""
        stored = self._field(b"checkpoint")
        return EntryId.parse(stored) if stored else ZERO

    @property
    def committed(self) -> int:
        """How many records the lock counts."""
        return number(self._field(b"entries"))

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused it."""
        return self._field(b"paused_at") != b""

    @property
    def aside(self) -> tuple[EntryId, ...]:
        """The records that an operator wants set aside."""
        lines = self._field(b"aside").split(b"\n")
        return tuple([EntryId.parse(line.partition(b" ")[0]) for line in lines if line])

    def tick(self, timer: str) -> int:
        """Return the time up to which calls are done, by their field."""
        return number(self._server.store.field(self._state_key, timer.encode()))

    # -- records -------------------------------------------------------------------------------

    @property
    def events(self) -> list[Record]:
        """The source records."""
        records = self._server.records_of
        return [record for pair in self._stream(self.events_key).entries for record in records(pair)]

    @property
    def waits(self) -> bool:
        """Whether the group must be done with others before it handles anything here."""
        return self._server.store.field(self.lock_key, b"from") is not None

    @property
    def has_all_committed(self) -> bool:
        """Whether no record follows the checkpoint."""
        ids = self._stream(self.events_key).ids
        return not ids or ids[-1] <= self.checkpoint

    @property
    def newest(self) -> EntryId:
        """The id of the newest entry."""
        ids = self._stream(self.events_key).ids
        return EntryId(*ids[-1]) if ids else ZERO

    @property
    def waiting(self) -> list[Record]:
        """The records after the checkpoint."""
        checkpoint = self.checkpoint
        return [record for record in self.events if record.id > checkpoint]

    @property
    def rows(self) -> list[Record]:
        """The records whose rows a reader finds in the acked log."""
        batches = self._server.batches
        return [row for _, flat in self._stream(self._acked_key).entries for row in batches[flat[-1]]]

    @property
    def dead(self) -> list[int]:
        """The numbers of the records that were set aside."""
        return [int(flat[-1]) for _, flat in self._stream(self._dead_key).entries]

    @property
    def state(self) -> Hash:
        """The fields of the keyed state."""
        return self._hash(self._state_key)

    @property
    def table(self) -> Hash:
        """The values of the table."""
        return self._hash(self._server.table_key(self))

    # -- values that end -----------------------------------------------------------------------

    @property
    def open(self) -> Hash:
        """The values at whose ends a function is called."""
        return self._hash(self.ends_keys[0])

    def ended(self, at_ms: int) -> tuple[tuple[bytes, bytes], ...]:
        """Return the keys and values that have ended."""
        keys = self._server.command("ZRANGEBYSCORE", self.ends_keys[1], "-inf", at_ms)
        values = self.open
        return tuple((key, value) for key in keys if (value := values.get(key)) is not None)

    def next_end_ms(self) -> int | None:
        """Return when the first value ends."""
        first = self._server.command("ZRANGE", self.ends_keys[1], 0, 0, "WITHSCORES")
        return int(first[1]) if first else None

    # -- commits -------------------------------------------------------------------------------

    @property
    def commits(self) -> list[Commit]:
        """The commits that an observer has seen, and that the server has."""
        return [each.commit for each in self.witnessed]

    @property
    def witnessed(self) -> list[Witnessed]:
        """Those commits, and when each came."""
        last = self._last_seen()
        return [] if last is None else last.commits()

    def witness(self, commit: Commit) -> None:
        """Keep that an observer has seen a commit."""
        self._server.store.put(
            self._seen_key, Witnessed(b"none", commit, self._server.partitions_ms, self._last_seen())
        )

    def _last_seen(self) -> Witnessed | None:
        return cast("Witnessed | None", self._server.store.peek(self._seen_key))

    def mark(self) -> tuple[object, ...]:
        """Return what each commit changes some of: the checkpoint, the calls by time, and the acked log."""
        acked = self._stream(self._acked_key)
        ticks = self.tick(TIMER_FIELD), self.tick(ENDS_FIELD)
        return self._server.store.field(self.lock_key, b"checkpoint"), ticks, acked.added

    # -- the outbox ----------------------------------------------------------------------------

    @property
    def has_messages(self) -> bool:
        """Whether the outbox has any."""
        return bool(self._stream(self._messages_key).ids)

    @property
    def messages(self) -> list[Message]:
        """The messages in the outbox."""
        chains = in_one_step(read_chains(self._server.backend, self.outbox_keys)).values()
        return sorted([each for chain in chains for each in chain], key=lambda each: each.number)

    @property
    def positions(self) -> dict[Target, OutboxPosition]:
        """How far the history of each target has come."""
        flat = [part for pair in self._hash(self.outbox_keys.heads.encode()).items() for part in pair]
        return dict(heads_of(flat).positions)
