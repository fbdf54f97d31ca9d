"""The simulator's model of Redis and a real server, side by side: the same operations, the same answers.

The scripts run on the real server as they are shipped, but ``TIME`` and the ids of entries follow the
test's clock. So nothing has to be taken "about": each answer, each time in it, each generation,
epoch, ETag and id of an entry must be equal, and a wait of seconds takes none. Two things are translated,
since a server makes them up: the identity of an acked log, and client ids.

Left out, since the model does not have them: how many source entries a lock has counted, the limits
of source and target partitions, dead letters, keyed state, and readers that allow acked logs to be trimmed.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from msgspec.msgpack import decode

from streamworker.core import events as ev
from streamworker.core.control import (
    ControlMessage,
    GroupChanged,
    PartitionsAcquired,
    PartitionsReleased,
    RequestMade,
)
from streamworker.core.data.channel import AppendCode
from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.core.data.outbox import START, Message, Target
from streamworker.core.ownership.locks import Acquired
from streamworker.core.protocols.claim.events import (
    NO_ENTRY,
    CheckpointsUpdated,
    ClaimPartitions,
    GiveUpPartitions,
    ListOwnership,
    OwnershipEntry,
    OwnershipListed,
    PartitionsClaimed,
    UpdateCheckpoints,
)
from streamworker.core.protocols.lease.events import Challenge, ChallengeLeases, RaceForLease, UpdateLeases
from streamworker.core.protocols.membership import events as membership_events
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.core.protocols.membership.mending import fingerprint
from streamworker.core.protocols.registry import from_fields
from streamworker.errors import BackendRefused, CoordinationError
from streamworker.records.entries import Entries, StoredEntry
from streamworker.redisio.data import outbox, streams
from streamworker.redisio.data.commit import CommitRequest, commit_many
from streamworker.redisio.data.outbox import OutboxWrite
from streamworker.redisio.group import control, locks, membership, operations, requests
from streamworker.redisio.group.control import fields_of
from streamworker.redisio.group.loads import loads_text
from streamworker.redisio.group.operation import Access
from streamworker.redisio.keys import TICK, StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.link import Argument
from tests.contract.clocked import ClockedBackend
from tests.contract.support import GROUP, STREAM, batch_of, message
from tests.simulator.server.claim import ModelClaims
from tests.simulator.server.damage import damaged, places
from tests.simulator.server.extensions import EXTENSIONS
from tests.simulator.server.lease import ModelLeases
from tests.simulator.server.model import RedisModel, Snapshot
from tests.simulator.server.stored import Commit, Record

OWNERS = ("a.1", "b.2", "c.3")
PARTITIONS = 3
DRAIN_DEADLINE_MS = 2_000
"""Shorter than the three seconds after which a contender is taken to have slept."""
REGISTERED_MS = 0
"""The model's locks come into the world with this epoch; so do real ones, at this time."""
START_MS = 1_000_000
NOBODY = 2**40
"""No connection has this client id."""
PAUSES_MS = (0, 0, 0, 1, 1, 7, 90, 300, 1_100, 2_100, 3_001)
CLOCKS_BEHIND_MS = (0, 0, 90, 5_000)
"""How far the clock of a server that takes over may be behind."""
REQUESTED = 7
"""Before one step of so many an operator makes a request."""
REQUESTS: tuple[requests.Request, ...] = ("pause", "resume", "retry", "put")
FORWARDED = 3
"""Before one step of so many an outbox is opened, or some of it is forwarded or deleted."""
EPOCHS_OFF = {0: -1, 1: 1}
"""Of eleven commits one is made at the epoch before, and one at the epoch after, as a failover leaves it."""
NEXT = StreamKeys("shop", "next")
TARGETS = (Target("next", 0), Target("next", 1))
"""Where messages are sent: several sources share a target."""
BATCHES = {rows: batch_of(rows) for rows in (1, 2, 3)}


class Step(NamedTuple):
    """One thing to do; what the numbers mean depends on what is there when it is done."""

    what: str
    pause_ms: int
    who: int
    where: int
    how: int


class Difference(AssertionError):
    """The model and the server are not alike."""


OF_GROUPS = ("read document", "change", "change", "beat", "read loads", "post", "hear", "probe", "mend")
OF_CONNECTIONS = ("connect", "cut")
OF_LOCKS = ("acquire", "acquire", "acquire", "insist", "release")
OF_RECORDS = ("append", "append", "append", "read", "commit", "commit", "commit again")
OF_SERVERS = ("damage", "damage", "damage", "flush", "copy", "copy", "fail over", "lag", "lag")
OF_PROTOCOLS = {
    "membership": (),
    "claim": ("declare", "list", "claim", "claim", "claim", "update", "update", "update", "give up"),
    "lease": ("challenge", "challenge", "race", "race", "race", "tell", "tell", "tell"),
}


def draw(random: Random, protocol: str, count: int) -> list[Step]:
    """Draw what to do. Loss of data is rare, so that something is built up between."""
    usual = OF_GROUPS + OF_CONNECTIONS + 2 * OF_LOCKS + 2 * OF_RECORDS + 3 * OF_PROTOCOLS[protocol]
    return [
        Step(
            random.choice(usual if random.random() > 0.04 else OF_SERVERS),
            random.choice(PAUSES_MS),
            random.randrange(len(OWNERS)),
            random.randrange(PARTITIONS),
            random.randrange(1_000),
        )
        for _ in range(count)
    ]


class Twins:
    """Does each step at both, and compares the answers and what can be seen afterwards.

    The real server is emptied. ``acked_limit`` is how many entries an acked log may hold; 0 for no limit.
    A server ``in_memory`` makes no fingerprints, and drops no entries of nodes that are needed in part.
    """

    def __init__(
        self, backend: ClockedBackend, protocol: str, acked_limit: int, *, in_memory: bool = False
    ) -> None:
        self.backend = backend
        self.in_memory = in_memory
        self.now_ms = START_MS
        self.access = Access(backend, GROUP, DRAIN_DEADLINE_MS)
        self.model = RedisModel(
            PARTITIONS,
            drain_deadline_ms=DRAIN_DEADLINE_MS,
            clock=lambda: self.now_ms,
            extend=EXTENSIONS.get(protocol, lambda: None),
        )
        self.model.acked_limit = acked_limit
        self.listener = backend.blocking()
        self.others: dict[int, Backend] = {}
        self.known = dict.fromkeys(OWNERS, Membership.empty(PARTITIONS, "range"))
        self.made: list[list[int]] = [[0] for _ in range(PARTITIONS)]
        """The model's ids of all entries that there ever were, lost or not."""
        self.logs: dict[tuple[int, str], str] = {}
        self.asked = ev.AcquireLocks((0,), OWNERS[0], 1, ())
        self.committed: dict[int, Commit] = {}
        self.sent: list[list[Message]] = [[] for _ in range(PARTITIONS)]
        """All messages that a commit of each partition ever had, done or not."""
        self.heard, self.heard_serial = ZERO, 0
        self.compared = ZERO
        self.seen = ""
        self.copy: tuple[Snapshot, list[tuple[bytes, int, bytes]]] | None = None
        """What the model and the server had; of each key when it expires, and its value."""
        self.met = set[str]()
        """Kinds of answers that came, to see that the steps lead everywhere."""

    async def begin(self) -> None:
        await self.backend.execute("FLUSHALL")
        await self.backend.set_clock(REGISTERED_MS)
        await streams.provision(self.backend, STREAM, PARTITIONS, "json")
        await streams.register(self.backend, GROUP, PARTITIONS, "earliest")

    async def end(self) -> None:
        await self.listener.aclose()
        for other in self.others.values():
            await other.aclose()

    async def do(self, step: Step) -> None:
        """Do one step at both; raise ``Difference`` if anything is not the same."""
        self.now_ms += step.pause_ms + (step.what == "append")
        await self.backend.set_clock(self.now_ms)
        if step.how % REQUESTED == 0:
            await self._operator_request(step)
        if step.how % FORWARDED == 0:
            await (self._forward, self._forward, self._delete, self._open)[step.how // FORWARDED % 4](step)
        await getattr(self, f"_{step.what.replace(' ', '_')}")(step)
        await self._compare_what_is_there()

    def same(self, what: str, real: object, modelled: object) -> None:
        """Insist that two things are equal."""
        if real != modelled:
            raise Difference(f"{what}\n  server: {real!r}\n  model:  {modelled!r}")

    async def _effect(self, effect: ev.Effect) -> ev.Event:
        operation = operations.OPERATIONS[type(effect)]
        try:
            real = await operation(self.access, effect)
        except BackendRefused:
            real = ev.Unanswered(effect)
        modelled = self.model.perform(effect)
        if isinstance(real, OwnershipListed) and isinstance(modelled, OwnershipListed):
            real = replace(real, entries=tuple(sorted(real.entries, key=lambda entry: entry.partition)))
            modelled = replace(
                modelled, entries=tuple(sorted(modelled.entries, key=lambda entry: entry.partition))
            )
        self.same(f"the answer to {effect}", self._as_modelled(real), modelled)
        self.met.add(type(modelled).__name__)
        if isinstance(modelled, ev.LocksAnswered):
            self.met.update(type(reply).__name__ for reply in modelled.replies.values())
        return modelled

    def _as_modelled(self, event: ev.Event) -> ev.Event:
        """Translate what a server makes up."""
        match event:
            case ev.LocksAnswered(_, _, replies):
                told = {
                    p: replace(
                        reply,
                        checkpoint=EntryId(_id(reply.checkpoint), 0),
                        entries=0,
                        log=self._log(p, reply.log),
                        aside={EntryId(_id(record), 0): why for record, why in reply.aside.items()},
                    )
                    if isinstance(reply, Acquired)
                    else reply
                    for p, reply in replies.items()
                }
                return replace(event, replies=told)
            case OwnershipListed(_, entries):
                return replace(event, entries=tuple(self._entry(entry) for entry in entries))
            case PartitionsClaimed(_, refused) | CheckpointsUpdated(_, refused):
                return replace(event, refused={p: e and self._entry(e) for p, e in refused.items()})
        return event

    def _entry(self, entry: OwnershipEntry) -> OwnershipEntry:
        return replace(entry, sequence=f"{_id(EntryId.parse(entry.sequence))}-0")

    def _log(self, partition: int, real: str) -> str:
        """Return the model's name of an acked log; a log that is new here is new there."""
        mine = self.logs.setdefault((partition, real), self.model.locks[partition].log_id)
        if [log for (p, _), log in self.logs.items() if p == partition].count(mine) > 1:
            raise Difference(f"partition {partition} has a new acked log at the server, and not in the model")
        return mine

    # -- members and messages ------------------------------------------------------------------

    async def _read_document(self, step: Step) -> None:
        answer = await self._effect(membership_events.ReadDocument())
        self._learn(step, answer)

    def _learn(self, step: Step, answer: ev.Event) -> None:
        if isinstance(answer, membership_events.DocumentRead | membership_events.ChangeRefused):
            empty = Membership.empty(PARTITIONS, "range")
            with suppress(CoordinationError):
                read = empty if answer.document is None else Membership.parse(answer.document)
                self.known[OWNERS[step.who]] = read

    async def _change(self, step: Step) -> None:
        """Join, mark as leaving, or remove somebody, by what was known when the document was read."""
        who, now = OWNERS[step.who], self.known[OWNERS[step.who]]
        if now.get(who) is None:
            after = now.with_member(Member(who, who[0], "host", 1, self.now_ms))
        elif step.how % 3:
            after = now.with_leaving(who)
        else:
            after = now.without([now.members[step.how % len(now.members)].id])
        added = tuple(each for each in after.ids if each not in now.ids)
        removed = tuple(each for each in now.ids if each not in after.ids)
        message = GroupChanged(0, "join" if added else "leave", who, now.moved(after))
        expected = now.generation if step.how % 7 else step.how % 3
        answer = await self._effect(
            membership_events.ChangeDocument(expected, after, message, added, removed)
        )
        if isinstance(answer, membership_events.DocumentChanged):
            self.known[who] = replace(after, generation=answer.generation)
        elif step.how % 2:
            self._learn(step, answer)

    async def _damage(self, step: Step) -> None:
        """Write over the document what can be none, of any type; or over heartbeats and loads."""
        if "heartbeats" in places(step.how):
            await self.backend.pipeline([("DEL", GROUP.beats), ("RPUSH", GROUP.beats, "x")])
            self.model.damage_beats()
        if "loads" in places(step.how):
            is_right = self.model.stored.no_loads
            right: list[Sequence[Argument]] = [("DEL", GROUP.loads)]
            await self.backend.pipeline(right if is_right else [*right, ("RPUSH", GROUP.loads, "x")])
            self.model.damage_loads(is_right=is_right)
        if "document" not in places(step.how):
            return
        document = self.known[OWNERS[step.who]].document()
        _, after = damaged(document, step.how)
        await self.backend.execute("DEL", GROUP.members)
        if after is None:
            await self.backend.execute("RPUSH", GROUP.members, "x")
        else:
            await self.backend.execute("SET", GROUP.members, after)
        self.model.damage(after)

    async def _mend(self, step: Step) -> None:
        """Put aside what was seen before, or what stands there: now and then a healthy document, too."""
        stored = self.model.stored
        there = stored.foreign if stored.document is None else fingerprint(stored.document)
        seen = (there, there, there, self.seen)[step.how % 4]
        self.seen = there
        known = self.known[OWNERS[step.who]]
        message = GroupChanged(0, "repaired", OWNERS[step.who], ())
        answer = await self._effect(
            membership_events.MendDocument(seen, known, message, known.generation + 1)
        )
        if isinstance(answer, membership_events.DocumentChanged):
            self.known[OWNERS[step.who]] = replace(known, generation=answer.generation)
            self.met.add("repaired")
        elif isinstance(answer, membership_events.DocumentRead):
            self.met.add("put aside")

    async def _beat(self, step: Step) -> None:
        member, run_id = OWNERS[step.who], self.model.run_id
        loads = (None, {}, {step.where: step.how}, {0: step.how, step.where: 1})[step.how % 4]
        renewal = membership.Renewal(GROUP, member, step.where, run_id, step.how, loads)
        (real,) = await membership.heartbeat(self.backend, [renewal], 1)
        if isinstance(real, Exception):
            raise real
        if real.foreign:
            self.met.add(
                f"said: {real.foreign.rpartition(':')[2]}{'' if real.beats else ', and no heartbeats'}"
            )
        self.met.add(f"lost: {real.lost}")
        modelled = self.model.heartbeat(member, step.where, 1, step.how, loads)
        modelled = replace(modelled, fingerprint="") if self.in_memory else modelled
        self.same("the answer to a heartbeat", real, modelled)

    async def _read_loads(self, _step: Step) -> None:
        await self._effect(membership_events.ReadLoads())

    async def _post(self, step: Step) -> None:
        kind = (PartitionsReleased, PartitionsAcquired)[step.how % 2]
        message = kind((step.where,), OWNERS[step.who], step.how)
        await control.post(self.backend, GROUP, [message.fields()])
        self.model.post(message)

    async def _hear(self, _step: Step) -> None:
        entries = await control.read_control(self.listener, {GROUP: self.heard}, 1)
        real = tuple(from_fields(fields) for _, _, fields in entries)
        self.heard = entries[-1][1] if entries else self.heard
        self.heard_serial, modelled = self.model.control_after(self.heard_serial)
        self.same("what is new on the control stream", real, modelled)

    async def _probe(self, step: Step) -> None:
        asked = tuple(self.others)[: step.how % 4]
        # Of other numbers that the server does not know, too.
        asked = (*asked, NOBODY) if step.how % 2 else asked
        await self._effect(membership_events.ProbePeers(asked))

    async def _connect(self, _step: Step) -> None:
        if len(self.others) < 3:
            other = self.backend.apart(1)
            number, _ = await other.identity()
            self.others[number] = other
            self.model.connections.add(number)

    async def _cut(self, step: Step) -> None:
        alive = sorted(self.model.connections)
        if alive:
            number = alive[step.how % len(alive)]
            await self.backend.execute("CLIENT", "KILL", "ID", number)
            self.model.connections.discard(number)

    # -- locks ---------------------------------------------------------------------------------

    async def _acquire(self, step: Step) -> None:
        owner, newest = OWNERS[step.who], self.model.locks[step.where].generation
        document = self.model.membership
        agreed = 0 if document is None else document.generation
        generation = (newest, newest, newest + 1, max(0, newest - 1), agreed, agreed)[step.how % 6]
        live = ((), OWNERS, OWNERS, () if document is None else document.ids)[step.how // 6 % 4]
        where = (step.where,) if step.how % 5 else tuple(range(PARTITIONS))
        self.asked = ev.AcquireLocks(where, owner, generation, tuple(live))
        await self._effect(self.asked)

    async def _insist(self, _step: Step) -> None:
        """Ask for the same lock again, as a contender does."""
        await self._effect(self.asked)

    async def _release(self, step: Step) -> None:
        lock = self.model.locks[step.where]
        owner = lock.owner if lock.owner and step.how % 3 else OWNERS[step.who]
        epochs = {step.where: max(1, lock.epoch - (step.how % 5 == 0))}
        if step.how % 2:
            await self._effect(ev.ReleaseLocks(owner, epochs))
        else:
            real = await locks.release_many(self.backend, GROUP, epochs, owner)
            modelled = {p: self.model.release(p, owner, epoch) for p, epoch in epochs.items()}
            self.same(f"whether {owner} released {epochs}", real, modelled)
            self.met.add(f"released: {real[step.where]}")

    async def _operator_request(self, step: Step) -> None:
        order: requests.Request = REQUESTS[step.how // REQUESTED % 4]
        p, lock = step.where, self.model.locks[step.where]
        waiting = [record.id for record in lock.events if record.id > lock.checkpoint]
        record = waiting[-1] if waiting and step.how % 5 else lock.checkpoint
        given = await requests.make_request(
            self.backend, GROUP, [p], order, who="ann", why="", record=_real(record)
        )
        version = self.model.operator_request(p, order, record)
        self.same(
            f"the version of {order} {p}",
            {p: each.version for p, each in given.items() if each.is_new},
            {} if version is None else {p: version},
        )
        if version is not None:
            said = str(_real(record)) if order == "put" else ""
            self.model.post(RequestMade(order, (p,), (version,), "ann", said))

    # -- records -------------------------------------------------------------------------------

    async def _append(self, step: Step) -> None:
        """Append the next entry, or one that was sent before."""
        p, lock = step.where, self.model.locks[step.where]
        number = max(1, lock.last_number + (1 if step.how % 4 else -(step.how % 3)))
        entries: list[tuple[bytes, None]] = [(b"%d" % number, None)]
        (reply,) = await streams.append_many(
            self.backend, STREAM, [streams.Append(p, "sender", number, 0, entries, number - 1)]
        )
        before = lock.last_event, lock.last_number
        self.model.append(p, number)
        is_new = (lock.last_event, lock.last_number) != before
        self.met.add(f"append: {reply.code.name}")
        self.same(f"what became of append {number}", reply.code is AppendCode.OK, is_new)
        if is_new and reply.last_id is not None:
            self.same("the id of an entry", reply.last_id, _real(lock.last_event))
            self.made[p].append(lock.last_event)

    async def _read(self, step: Step) -> None:
        p, ids = step.where, self.made[step.where]
        after, count = ids[step.how % len(ids)], 1 + step.how % 3
        found = await streams.read(self.listener, STREAM, {p: _real(after)}, count, 0)
        real = [_record(entry) for entry in found.get(p, ())]
        self.same(f"{count} entries of {p} after {after}", real, self.model.read_events(p, after, count))

    async def _commit(self, step: Step) -> None:
        """Commit what comes next; sometimes as somebody else, or after another checkpoint."""
        if step.how % 5 == 1:
            await self._tick(step)
            return
        p, lock, how = step.where, self.model.locks[step.where], step.how
        known = self.made[p]
        waiting = [record for record in lock.events if record.id > lock.checkpoint]
        rows = tuple(waiting[: how % 4])
        owner = lock.owner or OWNERS[step.who] if how % 6 else OWNERS[step.who]
        epoch = lock.epoch + EPOCHS_OFF.get(how % 11, 0)
        previous = lock.checkpoint if how % 7 else known[how % len(known)]
        new = rows[-1].id if rows else waiting[how % len(waiting)].id if waiting else lock.checkpoint
        await self._send(p, Commit(owner, epoch, previous, new, rows, sends=self._sends(p, how)))

    def _sends(self, p: int, how: int) -> OutboxWrite | None:
        """Return messages that follow what is there, or what never was; sometimes too many for the outbox."""
        if how % 5 > 2:
            return None
        lock, messages = self.model.locks[p], list[Message]()
        number, positions = EntryId.parse(lock.last_message or "0-0").ms, dict(lock.positions)
        for turn in range(1 + how // 5 % 2):
            to = TARGETS[(how // 10 + turn) % len(TARGETS)]
            payloads = (b"%d from %d, %d" % (number + turn, p, how), b"and one more")[: 1 + how % 2]
            each = message(number + turn + 1, positions.get(to, START), *payloads)
            messages.append(replace(each, to=to))
        self.sent[p] += messages
        return OutboxWrite("7-7" if how % 13 == 0 else lock.last_message, messages, how // 3 % 4)

    async def _tick(self, step: Step) -> None:
        """Commit the next planned time of a timer; sometimes the last one, or from another one."""
        p, lock, how = step.where, self.model.locks[step.where], step.how
        owner = lock.owner or OWNERS[step.who] if how % 6 else OWNERS[step.who]
        epoch = lock.epoch + EPOCHS_OFF.get(how % 11, 0)
        known = self.made[p]
        at = lock.checkpoint if how % 7 else known[how % len(known)]
        tick, before = lock.tick + (how % 3 > 0), lock.tick - (how % 4 == 0 and lock.tick > 0)
        await self._send(p, Commit(owner, epoch, at, at, tick=max(1, tick), tick_before=before))

    async def _commit_again(self, step: Step) -> None:
        """Repeat the last one, as after a lost answer."""
        if step.where in self.committed:
            await self._send(step.where, self.committed[step.where])

    async def _send(self, p: int, commit: Commit) -> None:
        self.committed[p] = commit
        entries = sum(commit.previous < record.id <= commit.new for record in self.model.locks[p].events)
        batch = None
        if commit.rows:
            batch = replace(BATCHES[len(commit.rows)], first=_real(commit.rows[0].id))
        request = CommitRequest(
            p,
            commit.owner,
            commit.epoch,
            _real(commit.previous),
            _real(commit.new),
            entries,
            batch,
            [(_real(commit.previous), StoredEntry(_real(commit.rows[0].id), ""))] if commit.rows else [],
            timer=f"{TICK}sweep" if commit.tick else "",
            before=b"%d" % commit.tick_before if commit.tick_before else b"",
            state={f"{TICK}sweep": b"%d" % commit.tick} if commit.tick else {},
            outbox=commit.sends,
            trim=True,
            acked_limit=self.model.acked_limit,
        )
        (reply,) = await commit_many(self.backend, GROUP, [request])
        self.met.add(reply.code.name)
        self.same(f"the code for {commit}", reply.code.value, self.model.commit(p, commit).name)

    # -- outboxes ------------------------------------------------------------------------------

    async def _open(self, step: Step) -> None:
        """Read an outbox, as whoever owns its partition from now on."""
        heads = await outbox.open_outbox(self.backend, GROUP.outbox(step.where))
        found = await outbox.read_messages(self.backend, GROUP.outbox(step.where), 0, 2**53, 100)
        self.same(f"outbox {step.where}", (heads, found), self.model.open_outbox(step.where))

    async def _forward(self, step: Step) -> None:
        """Forward the next message, any other, or one of another history under the same numbers."""
        p, how, waiting = step.where, step.how, self.model.locks[step.where].messages
        if not self.sent[p]:
            return
        sent = waiting[0] if waiting and how % 4 else self.sent[p][how % len(self.sent[p])]
        if how % 7 == 0:
            sent = replace(sent, since=sent.since._replace(digest="0123456789ab"))
        if how % 5 == 0:
            sent = replace(sent, through=sent.through._replace(digest="ba9876543210"))
        (real,) = await outbox.forward_many(self.backend, "shop", [(GROUP.outbox(p).source, sent)])
        self.met.add(f"forward: {real.code.name}")
        self.same(f"the answer to {sent} of {p}", real, self.model.forward(p, sent))

    async def _delete(self, step: Step) -> None:
        """Delete messages, by ids of which some may not be there."""
        ids = [each.id for each in self.sent[step.where][step.how % 5 :: 3]]
        ids += [each.id for each in self.model.locks[step.where].messages[: step.how % 3]]
        if ids:
            await outbox.delete_messages(self.backend, {GROUP.outbox(step.where): ids})
            self.model.delete_messages(step.where, ids)

    # -- claim and lease -----------------------------------------------------------------------

    async def _list(self, _step: Step) -> None:
        await self._effect(ListOwnership())

    async def _declare(self, _step: Step) -> None:
        """Start a worker, which says how many partitions there are."""
        await streams.provision(self.backend, STREAM, PARTITIONS, "json")
        self.model.stored.is_declared = True

    async def _claim(self, step: Step) -> None:
        await self._effect(ClaimPartitions(OWNERS[step.who], self._etags(step)))

    async def _update(self, step: Step) -> None:
        await self._effect(UpdateCheckpoints(OWNERS[step.who], self._etags(step)))

    def _etags(self, step: Step) -> dict[int, int]:
        """Return what a worker may know: the ETag that is there, none, or an older one."""
        store = self.model.extension
        assert isinstance(store, ModelClaims)
        there = {p: entry.etag for p, entry in store.entries.items()}
        several = range(PARTITIONS) if step.how % 3 == 0 else (step.where,)
        return {
            p: there.get(p, NO_ENTRY) if (step.how + p) % 4 else (NO_ENTRY, there.get(p, 2) - 1)[step.how % 2]
            for p in several
        }

    async def _give_up(self, step: Step) -> None:
        where = (step.where,) if step.how % 2 else tuple(range(PARTITIONS))
        await self._effect(GiveUpPartitions(OWNERS[step.who], where))

    async def _challenge(self, step: Step) -> None:
        kinds = list(Challenge)
        where = (step.where,) if step.how % 2 else tuple(range(PARTITIONS))
        asked = {p: kinds[(step.how // 2 + p) % 3] for p in where}
        await self._effect(ChallengeLeases(OWNERS[step.who], asked))

    async def _race(self, step: Step) -> None:
        await self._effect(RaceForLease(OWNERS[step.who], step.where))

    async def _tell(self, step: Step) -> None:
        leases = self.model.extension
        assert isinstance(leases, ModelLeases)
        won, winner = leases.grab.get(step.where, (step.how, ""))
        owner = winner if winner and step.how % 4 else OWNERS[step.who]
        win = {step.where: won - (step.how % 9 == 0)}
        end = (step.where,) if step.how % 5 == 0 else ()
        update = UpdateLeases(owner, win if step.how % 2 else {}, end, win if step.how % 3 else {})
        await self._effect(update)

    # -- the server's own fate -----------------------------------------------------------------

    async def _flush(self, _step: Step) -> None:
        await self.backend.execute("FLUSHALL")
        await self.backend.set_clock(self.now_ms)
        await self._lose_connections()
        self.model.flush()
        self.compared = ZERO

    async def _copy(self, _step: Step) -> None:
        """Remember what is there, as a replica that falls behind from now on."""
        keys = await self.backend.execute("KEYS", "*")
        dumps = await self.backend.pipeline([("DUMP", key) for key in keys])
        ttls_ms = await self.backend.pipeline([("PTTL", key) for key in keys])
        self.copy = self.model.snapshot(), list(zip(keys, map(_expiry, ttls_ms), dumps, strict=True))

    async def _fail_over(self, step: Step) -> None:
        if self.copy is None:
            return
        (taken, dumps), self.copy = self.copy, None
        self.now_ms = max(START_MS, self.now_ms - CLOCKS_BEHIND_MS[step.how % len(CLOCKS_BEHIND_MS)])
        await self.backend.execute("FLUSHALL")
        await self.backend.pipeline([("RESTORE", *each) for each in dumps])
        await self.backend.set_clock(self.now_ms)
        await self._lose_connections()
        self.model.lose_suffix(taken)
        # Whoever got no answer for that sends again, and what it read may be gone.
        for p, commit in tuple(self.committed.items()):
            await self._send(p, commit)

    async def _lag(self, step: Step) -> None:
        """Fail over to a replica that has not heard of the last entry and of its commit."""
        await self._copy(step)
        self.now_ms += 1
        await self.backend.set_clock(self.now_ms)
        await self._append(step._replace(how=1))
        lock = self.model.locks[step.where]
        rows = tuple(record for record in lock.events if record.id > lock.checkpoint)[:3]
        if rows and lock.owner:
            await self._send(step.where, Commit(lock.owner, lock.epoch, lock.checkpoint, rows[-1].id, rows))
        await self._fail_over(step)

    async def _lose_connections(self) -> None:
        for number in self.model.connections:
            await self.backend.execute("CLIENT", "KILL", "ID", number)

    # -- what is there -------------------------------------------------------------------------

    async def _compare_what_is_there(self) -> None:
        commands: list[Sequence[Argument]] = [
            ("TYPE", GROUP.members),
            ("GET", GROUP.members),
            ("TYPE", GROUP.damaged),
            ("GET", GROUP.damaged),
            ("TYPE", GROUP.beats),
            ("HGETALL", GROUP.beats),
            ("XRANGE", GROUP.control, f"({self.compared}", "+"),
            ("HGETALL", GROUP.of_group("claims")),
            ("HGETALL", GROUP.of_group("grab")),
            ("HGETALL", GROUP.of_group("allocation")),
            ("TYPE", GROUP.loads),
            ("HGETALL", GROUP.loads),
        ]
        for p in range(PARTITIONS):
            commands += [
                ("HGETALL", GROUP.lock(p)),
                ("XRANGE", GROUP.events(p), "-", "+"),
                ("XRANGE", GROUP.acked(p), "-", "+"),
                ("XRANGE", GROUP.outbox(p).messages, "-", "+"),
                ("HGETALL", GROUP.outbox(p).heads),
            ]
        for to in TARGETS:
            commands += [("HGETALL", NEXT.taken(to.partition)), ("XLEN", NEXT.events(to.partition))]
        replies = await self.backend.pipeline(commands)
        kind, document, kept_kind, kept, beats_kind, beats, posted, *rest = replies
        claims, grab, allocation, loads_kind, loads, *rest = rest
        stored = self.model.stored
        self.same("the document", _value(kind, document), stored.foreign or stored.document)
        self.same("what was put aside", _value(kept_kind, kept), stored.damaged)
        self.same("whether heartbeats are a list", beats_kind == b"list", stored.no_beats)
        self.same("the heartbeats", membership.read_beats(_hash(beats)), self.model.beats)
        texts = {member: loads_text(each) for member, each in self.model.stored.loads.items()}
        self.same("whether loads are a list", loads_kind == b"list", stored.no_loads)
        self.same("the loads", fields_of(_hash(loads)), texts)
        self._compare_messages(posted)
        self._compare_extension(claims, grab, allocation)
        for p in range(PARTITIONS):
            self._compare_partition(p, *rest[5 * p : 5 * p + 3])
            self._compare_outbox(p, *rest[5 * p + 3 : 5 * p + 5])
        for to, taken, count in zip(TARGETS, rest[-4::2], rest[-3::2], strict=True):
            its = {p: each for (target, p), each in stored.taken.items() if target == to}
            marks = {GROUP.outbox(p).source: str(each.position) for p, each in its.items()}
            self.same(f"what {to} has taken", fields_of(taken), marks)
            records = sum(decode(data)[1] for each in its.values() for data in each.data)
            self.same(f"how many records {to} has", count, records)

    def _compare_messages(self, posted: Sequence[Any]) -> None:
        real = [from_fields(fields_of(flat)) for _, flat in posted]
        if real:
            self.compared = EntryId.parse(posted[-1][0])
            modelled: list[ControlMessage] = self.model.control[-len(real) :]
            self.same("the control stream", real, modelled)

    def _compare_extension(self, claims: list[bytes], grab: list[bytes], allocation: list[bytes]) -> None:
        match self.model.extension:
            case ModelClaims(entries=entries, last=last):
                mine = {
                    str(p): "|".join(map(str, (e.etag, e.modified_ms, e.level, _place(e), e.owner)))
                    for p, e in entries.items()
                }
                self.same("the ownership entries", fields_of(claims), _with_last(mine, last))
            case ModelLeases(grab=won, allocation=allocated, last=last):
                self.same("the grab hash", fields_of(grab), _with_last(_lease_fields(won), last))
                self.same("the allocation hash", fields_of(allocation), _lease_fields(allocated))

    def _compare_partition(
        self, p: int, lock: list[bytes], events: Sequence[Any], acked: Sequence[Any]
    ) -> None:
        mine, fields = self.model.locks[p], fields_of(lock)
        checkpoint = EntryId.parse(fields.get("checkpoint", "0-0"))
        wanted = tuple(fields.get(f"wanted_{each}") for each in ("since", "at", "in"))
        waits = (mine.wanted_since, mine.wanted_at, mine.wanted_in)
        self.same(
            f"lock {p}",
            (fields.get("owner", ""), fields.get("epoch", "0"), fields.get("generation", "0"), wanted),
            (
                mine.owner,
                str(mine.epoch),
                str(mine.generation),
                (None, None, None) if mine.wanted_since is None else tuple(map(str, waits)),
            ),
        )
        self.same(
            f"the requests of {p}",
            (
                *(int(fields.get(name, 0)) for name in ("ordered", "obeyed")),
                "paused_at" in fields,
                *(_id(EntryId.parse(line.split(" ")[0])) for line in fields.get("aside", "").splitlines()),
            ),
            (mine.requested, mine.obeyed, mine.is_paused, *mine.aside),
        )
        self.same(f"checkpoint {p}", _id(checkpoint), mine.checkpoint)
        entries = Entries.of(events)
        there = [_record(entry) for entry in entries]
        if self.in_memory:
            there = [record for record in there if record in mine.events or record.id > mine.checkpoint]
        self.same(f"the entries of {p}", there, mine.events)
        log = [
            (f["owner"], int(f["epoch"]), f["prev"], f["last"], f["first"], int(f["rows"]))
            for f in (_text_fields(flat) for _, flat in acked)
        ]
        modelled = [
            (
                commit.owner,
                commit.epoch,
                str(_real(commit.previous)),
                str(_real(commit.new)),
                str(_real(commit.rows[0].id)),
                len(commit.rows),
            )
            for commit in mine.log
            if commit.rows
        ]
        self.same(f"the acked log of {p}", log, modelled)

    def _compare_outbox(self, p: int, messages: Sequence[Any], heads: list[bytes]) -> None:
        mine, real = self.model.locks[p], outbox.heads_of(heads)
        self.same(
            f"the heads of outbox {p}", (real.last, real.positions), (mine.last_message, mine.positions)
        )
        there = [(entry_id.decode(), flat[-1]) for entry_id, flat in messages]
        self.same(f"the messages of {p}", there, [(str(each.id), each.data) for each in mine.messages])


def _id(real: EntryId) -> int:
    """Return the model's id of an entry; -1 for one that it cannot have."""
    return 0 if real == ZERO else -1 if real.seq else real.ms - START_MS


def _real(modelled: int) -> EntryId:
    return EntryId(START_MS + modelled, 0) if modelled else ZERO


def _place(entry: OwnershipEntry) -> EntryId:
    """Return the place of a model's entry as the server has it."""
    return _real(EntryId.parse(entry.sequence).ms)


def _record(real: Entry) -> Record:
    """Return an entry of one record as the model has it."""
    return Record(_id(real.id), int(real.fields[b"v"]), _id(real.id))


def _expiry(pttl_ms: int) -> int:
    """Return a reply of ``PTTL`` as ``RESTORE`` takes it."""
    return max(0, pttl_ms)


def _value(kind: bytes, value: bytes | None) -> bytes | str | None:
    """Return a string, or which other type there is."""
    return value if kind in (b"string", b"none") else kind.decode()


def _hash(reply: Any) -> Sequence[bytes]:
    """Return the fields of a hash; none where there is something else."""
    return () if isinstance(reply, BackendRefused) else reply


def _with_last(fields: Mapping[str, str], last: int) -> dict[str, str]:
    return {**fields, "last": str(last)} if last else dict(fields)


def _lease_fields(leases: Mapping[int, tuple[int, str]]) -> dict[str, str]:
    return {str(p): f"{generation}|{owner}" for p, (generation, owner) in leases.items()}


def _text_fields(flat: Sequence[bytes]) -> dict[str, str]:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return {name.decode(): value.decode() for name, value in fields.items() if name != b"batch"}
