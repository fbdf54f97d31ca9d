"""The protocols of sends and of chains, in drawn schedules of faults.

A producer appends to a partition, or the owners of an outbox forward to it, while requests and answers are
lost or late, servers fail over, senders die, sends are given up, the partition is full, and an hour passes.
Then the faults end, each sender sends once more, and the world compares what is in the partition with what
was promised: each record once and in order, the right ids, nothing that was refused, and each loss told by
its number.

Positions, messages, ``OutboxQueue``, ``Heads``, ``Channel`` and ``Ledger`` are the product's own.
:class:`Partition` does what ``append.lua`` and ``forward.lua`` do, and :class:`ProducerLane` what
``runtime/send/lanes.py`` does.
"""

import json
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from streamworker.core.data.channel import AppendCode, AppendReply, AppendVerdict, Channel, InFlight, Ledger
from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import (
    START,
    Message,
    OutboxPosition,
    OutboxQueue,
    Standing,
    Target,
)
from streamworker.redisio.data.outbox import Heads

STEPS = 150
TICK_S = 36.0
FORGOTTEN_TICKS = 100
"""``append.lua`` remembers a producer for an hour."""
TO = Target("priced", 0)

FAULTS = {
    "break": 0.8,
    "fail_over": 0.5,
    "give_up": 0.5,
    "crash": 0.3,
    "full": 0.5,
    "fail_over_source": 0.4,
    "rest": 0.3,
}
"""How often each fault may occur in a schedule."""
ODDS = {
    "go_on": 30,
    "begin": 12,
    "arrive": 20,
    "hear": 18,
    "break": 7,
    "read": 3,
    "fail_over": 3,
    "give_up": 2,
    "fail_over_source": 1,
    "crash": 1,
    "rest": 1,
}
"""How often each step is drawn."""
DRAWN = [step for step, odds in ODDS.items() for _ in range(odds)]

SOURCE = "S"
Record = tuple[str, int]
"""The name of its sender, and its number there."""


class Broken(Exception):
    """A promise does not hold."""


class Clock:
    """The ticks of the world that runs now, for all ledgers."""

    ticks = 0

    @classmethod
    def now_s(cls) -> float:
        """Return the time of the ledgers."""
        return cls.ticks * TICK_S


# -- a partition ---------------------------------------------------------------------------------


UNANSWERED = AppendReply(AppendCode.UNKNOWN)


class Sent(NamedTuple):
    """An append, as it is sent."""

    number: int
    follows: int
    records: list[Record]


class Kept(NamedTuple):
    """What a partition remembers of a producer."""

    number: int
    last: int
    before: int
    its_last: int
    ticks: int


class Partition:
    """A partition, and the copies of it that a replica may have."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.log: list[tuple[int, Record]] = []
        self.read = self.behind_ticks = self.durable = 0
        self.sends: dict[str, Kept] = {}
        self.stands = START
        self.copies: list[tuple[int, dict[str, Kept], OutboxPosition]] = []
        self.wrote()

    def wrote(self) -> None:
        self.copies.append((len(self.log), dict(self.sends), self.stands))

    def waited(self) -> None:
        """Let a replica have all that is there."""
        self.durable = len(self.copies) - 1

    def fail_over(self, draw: random.Random) -> None:
        """Go on with what a replica has, whose clock may be behind."""
        at = max(self.durable, len(self.copies) - 1 - draw.randint(0, 5))
        length, sends, self.stands = self.copies[at]
        self.log, self.sends, self.copies = self.log[:length], dict(sends), self.copies[: at + 1]
        self.read, self.durable = min(self.read, length), at
        self.behind_ticks += draw.randint(0, 3)

    def add(self, records: Sequence[Record]) -> int | None:
        """Add records with consecutive ids; return the last id, or None without room."""
        if len(self.log) - self.read + len(records) > self.world.room:
            return None
        last = self.log[-1][0] if self.log else 0
        first = max(last + 1, (self.world.now - self.behind_ticks) * 1000)
        self.log += [(first + place, record) for place, record in enumerate(records)]
        return self.log[-1][0]

    def append(self, name: str, sent: "Sent") -> AppendReply:
        """``append.lua``."""
        number, kept = sent.number, self.sends.get(name)
        if kept and self.world.now - kept.ticks > FORGOTTEN_TICKS:
            kept = None
        stands = kept.number if kept else 0
        if kept and number in (kept.number, kept.before):
            self.sends[name] = kept._replace(ticks=self.world.now)
            self.wrote()
            last = kept.last if number == kept.number else kept.its_last
            return AppendReply(AppendCode.DUP, b"%d-0" % last)
        if stands != sent.follows:
            return AppendReply(AppendCode.OTHER, b"%d" % stands)
        if (added := self.add(sent.records)) is None:
            return AppendReply(AppendCode.FULL)
        number_before, its_last = (kept.number, kept.last) if kept else (0, 0)
        self.sends[name] = Kept(number, added, number_before, its_last, self.world.now)
        self.wrote()
        return AppendReply(AppendCode.OK, b"%d-0" % added)

    def forward(self, message: Message) -> AppendReply:
        """``forward.lua``."""
        if self.stands == message.through:
            self.wrote()
            return AppendReply(AppendCode.OK)
        if self.stands != message.since:
            self.wrote()
            return AppendReply(AppendCode.OTHER, str(self.stands).encode())
        if self.add(records_in(message)) is None:
            return AppendReply(AppendCode.FULL)
        self.stands = message.through
        self.wrote()
        return AppendReply(AppendCode.OK)


def records_in(message: Message) -> list[Record]:
    """Return the records that a message of the source holds."""
    return [(SOURCE, number) for number in json.loads(message.data)["inputs"]]


# -- a producer ----------------------------------------------------------------------------------


@dataclass(eq=False)
class Send:
    """One record, and what its sender knows of it."""

    record: Record
    state: str = "waits"
    """Or `confirmed`, `unknown` or `refused`."""
    last: int | None = None
    counts: bool = False
    """Whether it is in an append that was confirmed, also if its sender had given it up."""


class Batch(InFlight):
    """One append."""

    def __init__(self, lane: "ProducerLane", sends: list[Send]) -> None:
        super().__init__()
        self.lane, self.sends, self.tries = lane, sends, 0

    @property
    def sent(self) -> Sent:
        return Sent(self.number, self.follows, [send.record for send in self.sends])

    @property
    def is_wanted(self) -> bool:
        return any(send.state == "waits" for send in self.sends)


class ProducerLane(Channel[Batch]):
    """What a producer does with the sends to one partition."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__()
        self.world, self.name = world, name
        self.sends: list[Send] = []
        self.queue: deque[Send] = deque()
        self.ledger = Ledger()
        self.told = 0
        self.most, self.is_dead = 3, False

    @property
    def is_idle(self) -> bool:
        return not self.in_flight and not self.queue

    def send(self) -> None:
        self.sends.append(Send((self.name, len(self.sends))))
        self.queue.append(self.sends[-1])

    def give_up(self, send: Send) -> None:
        """Let a sender wait no longer; an append that is under way goes on."""
        send.state = "refused" if send in self.queue else "unknown"
        if send in self.queue:
            self.queue.remove(send)
        for batch in tuple(self.in_flight):
            if not (batch.is_wanted or batch.has_ended or batch.tries) and batch.answer is None:
                self.finish(batch)

    def go_on(self) -> None:
        """Cut an append if one may begin, and send what is to be sent."""
        last = self.in_flight[-1] if self.in_flight else None
        may_follow = not self.world.waits and len(self.in_flight) < 2
        if self.queue and (last is None or (may_follow and not last.unanswered)):
            count = min(self.most, self.world.draw.randint(1, 3), len(self.queue))
            self.begin(Batch(self, [self.queue.popleft() for _ in range(count)]))
            self.most = 3
        for batch in self.in_flight:
            if not batch.tries and batch.answer is None:
                self.tries(batch, Clock.now_s())
                batch.tries += 1
                self.world.send(AppendTry(self.world, batch))

    def heard(self, batch: Batch, reply: AppendReply) -> None:
        """Process an answer, or the end of the wait for one."""
        batch.tries -= 1
        if not batch.has_ended and not self.is_dead:
            self.process(batch, reply)

    def process(self, batch: Batch, reply: AppendReply) -> None:
        """Process an answer, as ``Lanes`` does; an append that must be sent again ends if no sender waits."""
        match self.answered(batch, reply):
            case AppendVerdict.WRITTEN:
                assert reply.last_id is not None
                self.settle(batch, reply.last_id)
            case AppendVerdict.NOT_WRITTEN:
                self.most = 1
                self.put_back(batch)
            case AppendVerdict.FORGOTTEN:
                for send in batch.sends:
                    send.state = "unknown" if send.state == "waits" else send.state
                self.finish(batch)
            case AppendVerdict.REPEAT:
                if reply.code is AppendCode.OTHER:
                    self.compare()
                if not batch.is_wanted:
                    self.finish(batch)

    def compare(self) -> None:
        lost = self.ledger.behind("priced", 0, self.stands, Clock.now_s())
        self.told += lost.records if lost else 0

    def settle(self, batch: Batch, last: EntryId) -> None:
        self.ledger.confirm(batch.number, len(batch.sends), last, Clock.now_s())
        for behind, send in enumerate(reversed(batch.sends)):
            send.counts = True
            if send.state == "waits":
                send.state, send.last = "confirmed", last.ms - behind
        self.finish(batch)

    def put_back(self, append: Batch) -> list[Batch]:
        """Put what waits back to its position in the queue."""
        back = super().put_back(append)
        waiting = [send for each in back for send in each.sends if send.state == "waits"]
        self.queue.extendleft(reversed(waiting))
        return back

    def finish(self, batch: Batch) -> None:
        """End an append that was written, or that nobody waits for."""
        if (released := self.end(batch)) is not None:
            behind, reply = released
            if reply is not None:
                self.process(behind, reply)


# -- an outbox -----------------------------------------------------------------------------------


class Source:
    """The slot of an outbox, and the copies of it that a replica may have."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.order = list(range(60))
        """The inputs as they are handled. After a failover those that were lost come in another order."""
        self.handled = self.number = self.salt = self.durable = 0
        self.head = START
        self.box: dict[int, Message] = {}
        self.copies: list[tuple[int, int, OutboxPosition, dict[int, Message]]] = []
        self.wrote()

    def wrote(self) -> None:
        self.copies.append((self.handled, self.number, self.head, dict(self.box)))
        if self.world.waits:
            self.durable = len(self.copies) - 1

    def commit(self) -> None:
        """Handle some inputs, and put what they lead to into the outbox."""
        its = self.order[self.handled : self.handled + self.world.draw.randint(1, 3)]
        self.handled, self.number = self.handled + len(its), self.number + 1
        data = json.dumps({"inputs": its, "salt": self.salt}).encode()
        since, self.head = self.head, self.head.after(len(its), data)
        self.box[self.number] = Message(self.number, TO, since, self.head, data)
        self.wrote()

    def delete(self, ids: Sequence[EntryId]) -> None:
        """Delete by the ids, which hold the digests."""
        for each in ids:
            kept = self.box.get(each.ms)
            if kept is not None and kept.id == each:
                del self.box[each.ms]
                self.wrote()

    def fail_over(self, draw: random.Random) -> None:
        at = max(self.durable, len(self.copies) - 1 - draw.randint(0, 5))
        self.handled, self.number, self.head, box = self.copies[at]
        self.box, self.copies, self.durable = dict(box), self.copies[: at + 1], at
        self.salt += 1
        again = self.order[self.handled :]
        draw.shuffle(again)
        self.order[self.handled :] = again


class Owner:
    """A worker that owns an outbox, or that still believes so."""

    def __init__(self, world: "World") -> None:
        self.world, self.source = world, world.source
        self.queue = OutboxQueue(TO)
        self.read_up_to = 0

    def go_on(self) -> None:
        """Read what is new in the outbox, and forward what waits, as ``Forwarder`` does."""
        for number, message in self.source.box.items():
            if number > self.read_up_to:
                self.queue.put(message)
                self.read_up_to = number
        messages = self.queue.begin(self.world.draw.choice([1, 60, 10**6]))
        if messages:
            self.world.send(ForwardTry(self.world, self, messages))

    def heard(self, replies: Sequence[AppendReply]) -> None:
        """Process the replies to a round trip."""
        taken, stopped = self.queue.answered(replies)
        self.source.delete(taken)
        if stopped is not None and stopped.code is AppendCode.OTHER:
            self.compare(OutboxPosition.parse(stopped.value))
        self.queue.is_busy = False
        if self.queue.held != sum(len(message.data) for message in self.queue.messages):
            raise Broken("the bytes of a queue are not those of its messages")

    def compare(self, stands: OutboxPosition) -> None:
        """``Forwarder._compare``."""
        source, partition = self.source, self.world.partition
        taken, why = self.queue.compared(stands, list(source.box.values()), source.head, self.read_up_to)
        source.delete(taken)
        if why is Standing.GOES_ON or stands != partition.stands:
            return
        if why is Standing.DIVERGED:
            self.world.is_halted = True
            return
        first, last = stands.records + 1, self.queue.messages[0].since.records
        self.world.lost[TO, first] = max(last, self.world.lost.get((TO, first), 0))
        self.queue.accept(stands)


# -- what is under way ---------------------------------------------------------------------------


class AppendTry:
    """One try of an append."""

    def __init__(self, world: "World", batch: Batch) -> None:
        self.world, self.batch, self.sent = world, batch, batch.sent
        self.answer = UNANSWERED

    @property
    def is_old(self) -> bool:
        """Whether the sender is through with it."""
        return self.batch.has_ended

    def arrive(self, *, durable: bool) -> None:
        """Run at the server."""
        self.answer = self.world.partition.append(self.batch.lane.name, self.sent)
        self.world.seen[self.answer.code.name] += 1
        if self.answer.last_id is not None and not durable:
            self.answer = replace(self.answer, code=AppendCode.UNKNOWN)

    def hear(self) -> None:
        """Give the answer to its sender."""
        self.batch.lane.heard(self.batch, self.answer)

    def lose(self) -> None:
        """Let its sender wait no longer."""
        self.batch.lane.heard(self.batch, UNANSWERED)


class ForwardTry:
    """One round trip with messages of an outbox."""

    def __init__(self, world: "World", owner: Owner, messages: Sequence[Message]) -> None:
        self.world, self.owner, self.messages = world, owner, messages
        self.replies: list[AppendReply] = []

    @property
    def is_old(self) -> bool:
        """Whether the sender is through with it."""
        return any(message.number not in self.owner.source.box for message in self.messages)

    def arrive(self, *, durable: bool) -> None:
        """Run at the server."""
        for message in self.messages:
            reply = self.world.partition.forward(message)
            self.world.seen[reply.code.name] += 1
            if reply.code is not AppendCode.FULL and not durable:
                reply = AppendReply(AppendCode.UNKNOWN)
            self.replies.append(reply)

    def hear(self) -> None:
        """Give the replies to the owner."""
        self.owner.heard(self.replies)

    def lose(self) -> None:
        """Let the owner wait no longer."""
        self.owner.heard([AppendReply(AppendCode.UNKNOWN)] * len(self.messages))


Try = AppendTry | ForwardTry
"""A request that is under way, or its answer."""


# -- a schedule ----------------------------------------------------------------------------------


class World:
    """One schedule, drawn from a seed, of a producer or of an outbox."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        Clock.ticks = 1
        self.waits = draw.random() < 0.4
        """Whether senders wait until a replica has what they send."""
        self.of_producer = draw.random() < 0.6
        self.faults = {fault for fault, odds in FAULTS.items() if draw.random() < odds}
        if "rest" in self.faults and self.of_producer:
            self.faults.discard("fail_over")  # After an hour nobody knows what a failover before it lost.
        self.room = draw.randint(4, 6) if "full" in self.faults else 10**9
        self.partition, self.source = Partition(self), Source(self)
        self.lanes = [ProducerLane(self, "P0")]
        self.owners = [Owner(self)]
        self.sent: dict[Try, None] = {}
        """Requests that have not arrived."""
        self.answered: dict[Try, None] = {}
        """Answers that nobody has heard."""
        self.waiting: set[Try] = set()
        """Tries whose senders wait for them."""
        self.lost: dict[tuple[Target, int], int] = {}
        """What owners told, as they note it in the heads of the outbox."""
        self.failovers = 0
        self.came_late = self.source_went_back = self.is_halted = self.is_calm = False
        self.seen: Counter[str] = Counter()

    @property
    def now(self) -> int:
        return Clock.ticks

    @property
    def told(self) -> int:
        """Records that were told as lost."""
        return Heads("", {}, self.lost).lost_records

    def send(self, its: Try) -> None:
        self.sent[its] = None
        self.waiting.add(its)

    def senders(self) -> Sequence[ProducerLane | Owner]:
        if self.of_producer:
            return [lane for lane in self.lanes if not lane.is_dead]
        return [] if self.is_halted else self.owners

    # -- steps -----------------------------------------------------------------------------------

    def arrive(self, its: Try) -> None:
        del self.sent[its]
        durable = not self.waits or self.is_calm or self.draw.random() < 0.8
        self.came_late |= self.failovers > 0 and (its.is_old or its not in self.waiting)
        its.arrive(durable=durable)
        if self.waits and durable:
            self.partition.waited()
        if its in self.waiting:
            self.answered[its] = None

    def hear(self, its: Try) -> None:
        del self.answered[its]
        self.waiting.discard(its)
        its.hear()

    def lose(self, its: Try) -> None:
        """Lose an answer, or a request; or let a request arrive late."""
        self.waiting.discard(its)
        if its in self.answered or self.draw.random() < 0.4:
            self.answered.pop(its, None)
            self.sent.pop(its, None)
        its.lose()

    def step(self) -> None:
        draw = self.draw
        Clock.ticks += draw.random() < 0.3
        what = draw.choice(DRAWN)
        if what not in FAULTS or what in self.faults:
            getattr(self, f"_{what}")()

    def _go_on(self) -> None:
        if senders := self.senders():
            self.draw.choice(senders).go_on()

    def _begin(self) -> None:
        if self.of_producer:
            if len(self.lanes[-1].sends) < 14:
                self.lanes[-1].send()
        elif self.source.handled < 16 and not self.is_halted:
            self.source.commit()

    def _arrive(self) -> None:
        if self.sent:
            self.arrive(self.draw.choice(list(self.sent)))

    def _hear(self) -> None:
        if self.answered:
            self.hear(self.draw.choice(list(self.answered)))

    def _break(self) -> None:
        if waiting := [its for its in (*self.sent, *self.answered) if its in self.waiting]:
            self.lose(self.draw.choice(waiting))

    def _read(self) -> None:
        self.partition.read = self.draw.randint(self.partition.read, len(self.partition.log))

    def _fail_over(self) -> None:
        self.failovers += 1
        self.partition.fail_over(self.draw)

    def _give_up(self) -> None:
        lane = self.lanes[-1]
        if waiting := [send for send in lane.sends if send.state == "waits"]:
            lane.give_up(self.draw.choice(waiting))

    def _fail_over_source(self) -> None:
        if not self.of_producer:
            self.source_went_back = True
            self.source.fail_over(self.draw)

    def _crash(self) -> None:
        if self.of_producer:
            self.lanes[-1].is_dead = True
            self.lanes.append(ProducerLane(self, f"P{len(self.lanes)}"))
        else:
            self.owners = [*self.owners[-1:], Owner(self)]  # The one before goes on for a while.

    def _rest(self) -> None:
        """Let up to two hours pass: nothing that is under way lives that long."""
        for its in list(self.waiting):
            self.lose(its)
        self.sent.clear()
        Clock.ticks += self.draw.randint(FORGOTTEN_TICKS // 3, 2 * FORGOTTEN_TICKS)

    # -- a run -----------------------------------------------------------------------------------

    def run(self) -> "World":
        """Run the schedule; raise Broken if a promise does not hold at its end."""
        for _ in range(STEPS):
            self.step()
        self.is_calm = True
        self.owners = [Owner(self)]
        self.settle()
        if self.of_producer:  # A partition that is sent nothing more tells no loss.
            self.lanes[-1].send()
        for _ in range(0 if self.is_halted else 4):
            self.source.commit()
        self.settle()
        self.check_producers() if self.of_producer else self.check_outbox()
        return self

    def settle(self) -> None:
        """Let all arrive, and each sender go on until it is done."""
        for _ in range(3_000):
            self.partition.read = len(self.partition.log)
            is_idle = self.lanes[-1].is_idle if self.of_producer else self.is_halted or not self.source.box
            if is_idle and not self.sent and not self.answered:
                return
            if self.draw.random() < 0.5:
                self._go_on()
            elif self.draw.random() < 0.5:
                self._arrive()
            else:
                self._hear()
        raise Broken("a sender waits for ever")

    def check_producers(self) -> None:
        ids = {record: its for its, record in self.partition.log}
        self.check_order(lambda record: record[1])
        for lane in self.lanes:
            missing = sum(send.counts and send.record not in ids for send in lane.sends)
            for send in lane.sends:
                if send.state == "confirmed" and not self.failovers and ids.get(send.record) != send.last:
                    raise Broken("a wrong id was told")
                if send.state == "refused" and send.record in ids:
                    raise Broken("a record that was refused is there")
            if lane.is_dead and self.failovers and not self.waits:
                continue  # Nobody remembers what it was told.
            self.check_told(missing, lane.told)

    def check_outbox(self) -> None:
        if self.is_halted:
            if self.waits or not self.source_went_back:
                raise Broken("two histories, though the source never went back")
            return
        is_doubtful = self.source_went_back and not self.waits
        if not (is_doubtful and self.told):
            places = {number: place for place, number in enumerate(self.source.order)}
            self.check_order(lambda record: places[record[1]])
        there = {record for _, record in self.partition.log}
        handled = self.source.order[: self.source.handled]
        missing = sum((SOURCE, number) not in there for number in handled)
        if not is_doubtful:
            self.check_told(missing, self.told)
        elif missing and not self.told:
            raise Broken("a loss was not told")

    def check_order(self, place: Callable[[Record], int]) -> None:
        """Check that no record is there twice, and that those of each sender are in order."""
        last: dict[str, int] = {}
        for _, record in self.partition.log:
            if last.get(record[0], -1) >= place(record):
                raise Broken("a record is there twice, or out of order")
            last[record[0]] = place(record)

    def check_told(self, missing: int, told: int) -> None:
        # What arrives late after a failover may bring back what was told as lost.
        if told != missing and not (told > missing and self.came_late):
            raise Broken(f"{missing} records are missing, and {told} were told as lost")
        if told and self.waits:
            raise Broken("a record that was waited for is lost")


def violation(seed: int) -> tuple[str, Counter[str]]:
    """Run a schedule; return what it breaks, or nothing, and how often each answer was given."""
    world = World(seed)
    try:
        world.run()
    except Broken as broken:
        return str(broken), world.seen
    return "", world.seen
