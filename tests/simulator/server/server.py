"""The server of a simulated group: the Lua that ships, called as redisio calls it.

An answer comes from redisio's own operations, which run as coroutines that never wait. What observers need
beside the answers is read from the store before and after a script.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import repeat
from typing import Any, cast

from streamworker.core import events as ev
from streamworker.core.control import ControlMessage
from streamworker.core.data.channel import AppendReply
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.outbox import START, Message, OutboxPosition, Target
from streamworker.core.data.placement import Placement
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.registry import from_fields
from streamworker.core.time.lifetimes import Lifetime
from streamworker.errors import BackendError, CoordinationError
from streamworker.records.entries import Entries, as_stored
from streamworker.redisio import scripts
from streamworker.redisio.data import outbox, streams
from streamworker.redisio.data.ackedlog import AckedBatch
from streamworker.redisio.data.commit import CommitCode, CommitRequest, DeadEntry, commit_many
from streamworker.redisio.data.outbox import Heads
from streamworker.redisio.data.trimming import Keep, trim_many
from streamworker.redisio.group import control, following, locks, membership, operations, requests
from streamworker.redisio.group.operation import Access
from streamworker.redisio.keys import GroupKeys, StreamKeys, number
from streamworker.redisio.scripts import SEAL, Script
from streamworker.redisio.wire.client import Backend, BlockingConnection
from streamworker.redisio.wire.durability import MEMORY
from streamworker.redisio.wire.link import Argument
from streamworker.runtime.run.threads import in_one_step
from tests.simulator.server.backend import StoreBackend
from tests.simulator.server.partition import Partition
from tests.simulator.server.stored import ENDS, Changes, Commit, LockChange, Record
from tests.simulator.store.keyspace import Snapshot
from tests.simulator.store.values import Hash, Other, Stream

KEYS = GroupKeys("sim", "source", "group")
NEXT = StreamKeys("sim", "next")
OF_TARGETS = b"sw:{sim.next."
OF_GROUP = b"sw:{sim.source:"
PRODUCER = "sender"
TABLE = "table"
TABLES = {TABLE: Lifetime(), "ends": ENDS}
TABLE_KEYS = 5
TARGETS = 2
"""Partitions of the stream to which messages are sent: several sources share a target."""
TRIM_EVERY = 3
"""One commit of so many trims the source."""
SOURCES = 1_000
"""More than a stream has partitions: what is sent on tells the record's number and its partition."""
COUNTED = (calls.ReadDocument, calls.ChangeDocument, calls.MendDocument, ev.AcquireLocks, ev.ReleaseLocks)
LOSSY = (ev.AcquireLocks, ev.ReleaseLocks)
"""Of these pipelines single commands may be lost, or their replies."""


class SimulatedServer(StoreBackend):
    """What a group's workers and senders call, and what observers see of it.

    Two servers hold it, as on a Cluster: one the keys of the group and one those of the partitions, whose
    clock may be behind. A third one may hold the targets: it fails over alone.
    """

    keys = KEYS

    def __init__(self, partitions: int, *, drain_deadline_ms: int, clock: Callable[[], int]) -> None:
        self._clock = clock
        super().__init__(lambda: self._now_us)
        self._now_us = clock() * 1_000
        self.backend = cast(Backend, self)
        self.placement = Placement(partitions)
        self._access = Access(self.backend, KEYS, drain_deadline_ms, self.placement.parents_of)
        self.tick_ms = 1
        """How coarse the clock is that ids of records follow."""
        self.behind_ms = 0
        """How far the clock of the partitions' server is behind that of the group's."""
        self.runs = 1
        """The number of the server's run; each restart begins another run."""
        self.retention_ms = 0
        """How long source records stay after the group has committed them."""
        self.tables: Sequence[str] = ()
        """Those that batches write."""
        self.calls = 0
        """Number of calls about documents and locks; a group at rest makes none."""
        self.fenced = 0
        """Number of refused commits."""
        self.overtaken = 0
        """Number of locks that a contender took from a live owner that did not release in time."""
        self.losses = 0
        """How often a server has lost data."""
        self.on_post: Callable[[], None] = lambda: None
        self.on_lock: Callable[[LockChange], None] = lambda _: None
        self.on_acquired: Callable[[int, Partition], None] = lambda _partition, _its: None
        """Called with a partition whose owner learns of its requests: a pause, and records to set aside."""
        self.on_held: Callable[[int, int], None] = lambda _partition, _generation: None
        """Called with a partition whose lock a contender is refused, and the contender's generation."""
        self.on_commit: Callable[[int, Commit], None] = lambda _partition, _commit: None
        self.batches: dict[bytes, list[Record]] = {}
        """By the content of a batch in an acked log: the records whose rows it has."""
        self._numbers: dict[bytes, tuple[int, ...]] = {}
        """By the content of a message: the numbers of the records in it."""
        self._records: dict[int, tuple[Any, tuple[Record, ...]]] = {}
        """By the identity of an entry in the store: that entry, and its records."""
        self._commits = 0
        self.partitions: list[Partition] = []
        self._partition_of: dict[bytes, int] = {}
        self.grow()

    # -- time ----------------------------------------------------------------------------------

    @property
    def partitions_ms(self) -> int:
        """The time of the partitions' server."""
        return self._clock() - self.behind_ms

    def _set_clock(self, script: Script | None, key: bytes) -> None:
        """Let the time stand that a script or a command finds."""
        if key.startswith(OF_GROUP):
            self._now_us = self._clock() * 1_000
        elif script is scripts.APPEND or script is scripts.FORWARD:
            self._now_us = self.partitions_ms // self.tick_ms * self.tick_ms * 1_000
        else:
            self._now_us = self.partitions_ms * 1_000

    # -- calls ---------------------------------------------------------------------------------

    def evaluate(self, script: Script, keys: list[bytes], args: list[bytes]) -> Any:
        """Run a script, and tell observers what it has done."""
        self._set_clock(script, keys[0])
        if script is scripts.ACQUIRE or script is scripts.RELEASE:
            return self._changed(script, keys, args)
        if not keys[0].startswith(OF_GROUP):
            return super().evaluate(script, keys, args)
        posted = self._posted()
        reply = super().evaluate(script, keys, args)
        if self._posted() != posted:
            self.on_post()
        return reply

    def command(self, name: Argument, *words: Argument) -> Any:
        """Return the reply to a command, or its error."""
        self._now_us = self._clock() * 1_000
        reply = super().command(name, *words)
        if name == "XADD":
            self.on_post()
        return reply

    def _posted(self) -> int:
        control = self.store.peek(KEYS.control.encode())
        return control.added if isinstance(control, Stream) else 0

    def _changed(self, script: Script, keys: list[bytes], args: list[bytes]) -> Any:
        """Run a script that may change the owner of a lock."""
        before = self._lock_at(keys[0])
        reply = super().evaluate(script, keys, args)
        owner, epoch, generation = after = self._lock_at(keys[0])
        partition, by = self._partition_of[keys[0]], args[0].decode()
        if after != before:
            command = "acquire" if script is scripts.ACQUIRE else "release"
            self.on_lock(
                LockChange(
                    partition,
                    command,
                    by,
                    before[0].decode(),
                    owner.decode(),
                    number(epoch),
                    number(generation),
                    self.partitions_ms,
                )
            )
        if script is scripts.ACQUIRE and reply[0] == b"OK":
            self.overtaken += before[0] not in (b"", args[0]) and before[0] in args[5:]
            self.on_acquired(partition, self.partitions[partition])
        elif reply[0] == b"HELD":
            self.on_held(partition, number(args[1]))
        return reply

    def _lock_at(self, key: bytes) -> tuple[bytes, ...]:
        return tuple([self.store.field(key, name) or b"" for name in (b"owner", b"epoch", b"generation")])

    def perform(self, effect: ev.Effect, lost: Callable[[], bool] = lambda: False) -> ev.Event:
        """Perform an effect of a core and return the answer.

        ``lost`` returns whether the next command of a pipeline, or its reply, is lost.
        """
        self.calls += isinstance(effect, COUNTED)
        usual = self.lost
        if isinstance(effect, LOSSY):
            self.lost = lost
        try:
            return in_one_step(operations.OPERATIONS[type(effect)](self._access, effect))  # type: ignore[arg-type]
        except BackendError:
            return ev.Unanswered(effect)
        finally:
            self.lost = usual

    def heartbeat(
        self,
        member: str,
        connection: int,
        sent_ms: int,
        load: int = 0,
        loads: Mapping[int, int] | None = None,
    ) -> calls.HeartbeatDone | BackendError:
        """Renew a membership."""
        renewal = membership.Renewal(KEYS, member, connection, self.run_id, load, loads)
        (done,) = in_one_step(membership.heartbeat(self.backend, [renewal], sent_ms))
        return done

    @property
    def run_id(self) -> str:
        """The server's run id."""
        return f"run-{self.runs}"

    def release(self, partition: int, owner: str, epoch: int) -> bool:
        """Release a lock; return whether the owner held it, or has released it before."""
        return in_one_step(locks.release_many(self.backend, KEYS, {partition: epoch}, owner))[partition]

    def operator_request(self, partition: int, request: str, record: EntryId = ZERO) -> None:
        """Write a request of an operator into a lock, and tell the workers."""
        how = cast(requests.Request, request)
        in_one_step(
            requests.make_request(self.backend, KEYS, [partition], how, who="ann", why="", record=record)
        )

    def requested(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the versions of the requests in some locks."""
        return in_one_step(requests.read_versions(self.backend, KEYS, partitions))

    def post(self, message: ControlMessage) -> None:
        """Post a control message."""
        in_one_step(control.post(self.backend, KEYS, [message.fields()]))

    def newest_message(self) -> EntryId:
        """Return the id of the last control message."""
        stream = self.store.peek(KEYS.control.encode())
        return EntryId(*stream.last) if isinstance(stream, Stream) else ZERO

    def control_after(self, position: EntryId) -> tuple[EntryId, tuple[ControlMessage, ...]]:
        """Return the control messages after an id, and the last one's, from which to go on."""
        if self.newest_message() <= position:  # as for most polls
            return position, ()
        found = in_one_step(control.read_control(cast(BlockingConnection, self), {KEYS: position}, 0))
        messages = (from_fields(fields) for _, _, fields in found)
        return found[-1][1] if found else position, tuple(each for each in messages if each is not None)

    def history(self) -> list[tuple[int, ControlMessage]]:
        """Return all control messages, and when each was posted."""
        found = in_one_step(control.read_control(cast(BlockingConnection, self), {KEYS: ZERO}, 0))
        known = ((entry_id.ms, from_fields(fields)) for _, entry_id, fields in found)
        return [(at_ms, message) for at_ms, message in known if message is not None]

    # -- documents -----------------------------------------------------------------------------

    @property
    def document(self) -> bytes | None:
        """The value at the document's key; None if it is no string."""
        found = self.store.peek(KEYS.members.encode())
        return found if isinstance(found, bytes) else None

    @property
    def membership(self) -> Membership | None:
        """The current document; None if there is none or it cannot be parsed."""
        try:
            return None if (document := self.document) is None else Membership.parse(document)
        except CoordinationError:
            return None

    @property
    def beats(self) -> dict[str, calls.Beat]:
        """The last heartbeat of each member."""
        found = self.store.peek(KEYS.beats.encode())
        flat = [part for pair in found.items() for part in pair] if isinstance(found, Hash) else []
        return membership.read_beats(flat)

    def damage(self, document: bytes | None) -> None:
        """Overwrite the document's key as another program might: with a string, or a list if None."""
        self.store.put(KEYS.members.encode(), Other(b"list") if document is None else document)

    def damage_beats(self) -> None:
        """Replace the heartbeats by a list, as another program might."""
        self.store.put(KEYS.beats.encode(), Other(b"list"))

    def damage_loads(self, *, is_right: bool = False) -> None:
        """Replace the loads by a list, as another program might; with ``is_right`` delete that list."""
        if not is_right:
            self.store.put(KEYS.loads.encode(), Other(b"list"))
        elif isinstance(self.store.peek(KEYS.loads.encode()), Other):
            self.store.drop(KEYS.loads.encode())

    # -- records -------------------------------------------------------------------------------

    def append(self, partition: int, last: int, count: int, since: int) -> AppendReply:
        """Append the records up to a number, after those up to ``since``. The call may be repeated."""
        payloads = [b"%d" % each for each in range(last - count + 1, last + 1)]
        append = streams.Append(partition, PRODUCER, last, 0, payloads, since, pack="json")
        (reply,) = in_one_step(streams.append_many(self.backend, KEYS, [append]))
        return reply

    def read_events(self, partition: int, after: EntryId, count: int) -> list[Record]:
        """Return the records of some entries, the first of which may begin before the id."""
        pairs = self.entries_after(self.partitions[partition].events_key, b"%d-%d" % after, count)
        return [record for pair in pairs for record in self.records_of(pair)]

    def records_of(self, pair: tuple[bytes, Sequence[bytes]]) -> tuple[Record, ...]:
        """Return the records of an entry."""
        known = self._records.get(id(pair))
        if known is None:
            entries = Entries.of([pair])
            entry = as_stored(*entries.origin_at(0))
            numbers = entries.decoded(int, json.loads, b"v")
            assert numbers is not None
            ids = map(entries.id_at, range(len(entries)))
            found = tuple(map(Record, ids, numbers, repeat(entry)))
            known = self._records[id(pair)] = pair, found
        return known[1]

    def commit(self, partition: int, commit: Commit) -> CommitCode:
        """Commit a batch or the call of a timer, and trim the source."""
        its = self.partitions[partition]
        self._commits += 1
        request, before = self._request(partition, commit), its.mark()
        (reply,) = in_one_step(commit_many(self.backend, KEYS, [request]))
        if its.mark() != before:
            its.witness(commit)
            self.on_commit(partition, commit)
        self.fenced += reply.code is CommitCode.FENCED
        if reply.code is CommitCode.OK and self.retention_ms and self._commits % TRIM_EVERY == 0:
            in_one_step(trim_many(self.backend, KEYS, {partition: 0}, lambda _: Keep(self.retention_ms)))
        return reply.code

    def _request(self, partition: int, commit: Commit) -> CommitRequest:
        request = CommitRequest(
            partition, commit.owner, commit.epoch, commit.previous, commit.new, len(commit.rows)
        )
        if commit.ticked[1]:
            request.ticked = commit.ticked[0], b"%d" % commit.ticked[1]
        request.outbox = commit.sends
        if commit.tick:
            request.timer = commit.timer
            request.before = b"%d" % commit.tick_before if commit.tick_before else b""
            removed: Changes = {("ends", key): None for key, _ in commit.called}
            request.state = {commit.timer: b"%d" % commit.tick, **removed}
            request.tables = {"ends": ENDS} if removed else {}
            return request
        request.reads = [(commit.previous, commit.rows[0].entry)]
        request.last = commit.rows[-1].entry
        request.trim = not self.retention_ms and self._commits % TRIM_EVERY == 0
        request.dead = [
            DeadEntry(row.id, {b"v": b"%d" % row.number}, "set aside", 1)
            for row in commit.rows
            if row.id in commit.aside
        ]
        if handled := commit.handled:
            data = b"%d" % self._commits
            self.batches[data] = handled
            request.batch = AckedBatch(len(handled), 0, "none", 0, data, "schema", commit.rows[0].id)
            request.state = self._results(handled)
            request.tables = {name: its for name, its in TABLES.items() if name in self.tables}
        return request

    def _results(self, handled: Sequence[Record]) -> Changes:
        results: Changes = {"last": b"%d" % handled[-1].number}
        for table in self.tables:
            results |= {(table, b"%d" % (row.number % TABLE_KEYS)): b"%d" % row.number for row in handled}
        return results

    def table_key(self, its: Partition) -> bytes:
        """Return the key of a partition's table."""
        return KEYS.table(self._partition_of[its.lock_key], TABLE).encode()

    # -- what is sent on -----------------------------------------------------------------------

    def open_outbox(self, partition: int) -> tuple[Heads, list[Message]]:
        """Open an outbox; return where it stands, and all messages that are there."""
        its = self.partitions[partition]
        return in_one_step(outbox.open_outbox(self.backend, its.outbox_keys)), its.messages

    def delete_messages(self, partition: int, ids: Collection[EntryId]) -> None:
        """Delete messages that their targets have taken."""
        keys = self.partitions[partition].outbox_keys
        assert not in_one_step(outbox.delete_messages(self.backend, {keys: list(ids)}))

    def message_of(self, partition: int, numbers: Sequence[int]) -> bytes:
        """Return the content of a message with some records of a partition."""
        payloads = [b"%d" % (each * SOURCES + partition) for each in numbers]
        data = outbox.pack_records(0, streams.records_args(payloads, "json"))
        self._numbers[data] = tuple(numbers)
        return data

    def forward(self, partition: int, message: Message) -> AppendReply:
        """Forward a message."""
        source = self.partitions[partition].outbox_keys.source
        (reply,) = in_one_step(outbox.forward_many(self.backend, "sim", [(source, message)]))
        return reply

    def taken(self, to: Target, partition: int) -> OutboxPosition:
        """Return how much a target has taken of a partition."""
        found = self.store.peek(NEXT.taken(to.partition).encode())
        taken = found if isinstance(found, Hash) else Hash()
        stored = taken.get(self.partitions[partition].outbox_keys.source.encode())
        return START if stored is None else OutboxPosition.parse(stored)

    def numbers_in(self, message: Message) -> tuple[int, ...]:
        """Return the numbers of the records in a message."""
        return self._numbers[message.data]

    def arrived(self, partition: int) -> list[int]:
        """Return the numbers of the records that the targets have from a partition."""
        found = [self.store.peek(NEXT.events(target).encode()) for target in range(TARGETS)]
        pairs = [pair for stream in found if isinstance(stream, Stream) for pair in stream.entries]
        sent = [record.number for pair in pairs for record in self.records_of(pair)]
        return [each // SOURCES for each in sent if each % SOURCES == partition]

    # -- partitions, restarts and failovers ------------------------------------------------------

    def grow(self, count: int = 0) -> None:
        """Grow by a generation of some partitions; with 0 do again what was lost of the last growth."""
        if count:
            self.placement.become(*self.placement.counts, count)
        for index in range(len(self.partitions), self.placement.total):
            self.partitions.append(Partition(self, index))
            self._partition_of[self.partitions[index].lock_key] = index
        self.declare()
        in_one_step(streams.register(self.backend, KEYS, self.placement, "earliest"))
        for index in range(self.placement.base):
            in_one_step(self.backend.run(SEAL, SEAL.at(KEYS, index, map=str(self.placement))))

    def declare(self) -> None:
        """Let the server know the partitions, as each worker does at its start."""
        self.store.drop(KEYS.meta.encode())
        first = self.placement.counts[0]
        in_one_step(streams.provision(self.backend, KEYS, first, "json"))
        if self.placement.base:
            changed = "partitions", str(first), str(self.placement)
            in_one_step(streams.set_field(self.backend, KEYS.meta, *changed))

    @property
    def active(self) -> range:
        """The partitions that the group works on."""
        first = in_one_step(following.read_first(self.backend, KEYS, self.placement))
        return range(first, self.placement.total)

    def finish(self, start: ev.StartRunner, checkpoint: EntryId) -> bool | None:
        """Note that the group is done with a partition; None if it has another owner by now, or went back."""
        its, p = self.partitions[start.partition], start.partition
        if in_one_step(following.finish_many(self.backend, KEYS, {p: start}, MEMORY)):
            return True
        known = (start.owner, start.lock.epoch, checkpoint)
        return False if (its.owner, its.epoch, its.checkpoint) == known else None

    def open(self, start: ev.StartRunner) -> bool | None:
        """Open a partition if the group is done with its parents; None if it has another owner by now."""
        if in_one_step(following.unfinished(self.backend, KEYS, start.lock.waits_for)):
            return False
        return in_one_step(following.open_partition(self.backend, KEYS, start, MEMORY)) or None

    def restart(self) -> None:
        """Restart with all data: connections end, and client ids lose their meaning."""
        self.runs += 1
        self.connections.clear()

    def fail_over(self, snapshot: Snapshot, alone: str = "") -> None:
        """Go on with the data of a replica: all of it, or that of the sources or the targets alone."""
        self.losses += 1
        if alone != "targets":
            self.restart()
        if alone:
            is_target = {key: key.startswith(OF_TARGETS) for key in {*self.store.values, *snapshot.values}}
            old, now = (snapshot, self.store.snapshot())[:: 1 if alone == "targets" else -1]
            values = {key: each for key, each in old.values.items() if is_target[key]}
            values |= {key: each for key, each in now.values.items() if not is_target[key]}
            snapshot = Snapshot(values, {**old.expiry, **now.expiry})
        self.store.restore(snapshot)

    def flush(self) -> None:
        """Restart without data; the next acquire creates each lock again."""
        self.restart()
        self.losses += 1
        self.store.restore(Snapshot({}, {}))

    def shares(self, name: str) -> dict[int, bytes]:
        """Return what a hash of one protocol has for partitions."""
        found = self.store.peek(KEYS.of_group(name).encode())
        return {int(p): each for p, each in found.items() if p.isdigit()} if isinstance(found, Hash) else {}

    def empty_store(self) -> None:
        """Delete what the protocol keeps besides the document and the locks."""
        for name in operations.HASHES:
            self.store.drop(KEYS.of_group(name).encode())
        self.store.drop(KEYS.meta.encode())
