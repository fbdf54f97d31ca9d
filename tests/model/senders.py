"""Who sends to a stream: appends in lanes, records with an id, and records that are sent later.

The lanes are ``runtime/send/lanes.py`` and ``growth.py``, on the product's ``Channel``; the others are
``runtime/send/named.py``.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count

from streamworker.core.data.channel import AppendCode, AppendReply, AppendVerdict, Channel, InFlight
from tests.model.net import Actor, Net
from tests.model.scripts import Answer, Later, Record
from tests.model.streams import Router, Stream, router

UNANSWERED = AppendReply(AppendCode.UNKNOWN)
_calls = count()


class Unit:
    """One record that waits until it is there."""

    __slots__ = ("is_confirmed", "record")

    def __init__(self, record: Record) -> None:
        self.record, self.is_confirmed = record, False


class Batch(InFlight):
    """One append."""

    __slots__ = ("tries", "units")

    def __init__(self, units: list[Unit]) -> None:
        super().__init__()
        self.units, self.tries = units, 0


class Lane(Channel[Batch]):
    """The appends of one producer to one partition."""

    def __init__(self, partition: int) -> None:
        super().__init__()
        self.partition, self.is_sealed = partition, False
        self.queue: deque[Unit] = deque()


class Producer:
    """One process that sends."""

    def __init__(self, net: Net, stream: Stream, name: str) -> None:
        self.net, self.stream, self.name = net, stream, name
        self.router = router(stream.map)
        self.lanes: dict[int, Lane] = {}
        self.units: list[Unit] = []
        self.named: list[Unit] = []
        self.is_looking = self.is_dead = False

    @property
    def is_idle(self) -> bool:
        return all(unit.is_confirmed for unit in (*self.units, *self.named))

    def follow_map(self) -> None:
        if len(self.stream.map) > len(self.router.counts):
            self.router = router(self.stream.map)

    # -- lanes -----------------------------------------------------------------------------------

    def lane(self, partition: int) -> Lane:
        if (lane := self.lanes.get(partition)) is None:
            lane = self.lanes[partition] = Lane(partition)
        return lane

    def send(self, key: bytes) -> None:
        self.units.append(Unit((self.name, key, len(self.units))))
        self.lane(self.router.goes(key)).queue.append(self.units[-1])
        self.go_on()

    def holds(self, lane: Lane) -> bool:
        """Whether a lane must begin nothing: its partition is old, or an older one has something left."""
        if lane.partition < self.router.base:
            return True
        older = map(self.lanes.get, self.router.ancestors[lane.partition])
        return any(each is not None and (each.in_flight or each.queue) for each in older)

    def go_on(self) -> None:
        """Begin the appends that may begin, and repeat those that need it."""
        if self.is_dead:
            return
        self.settle()
        for lane in tuple(self.lanes.values()):
            if lane.queue and not lane.is_sealed and not self.holds(lane) and self.may_begin(lane):
                size = min(len(lane.queue), 1 + int(self.net.dice.random() * 2))
                lane.begin(Batch([lane.queue.popleft() for _ in range(size)]))
            for batch in lane.in_flight:
                if not batch.tries and batch.answer is None:
                    batch.tries += 1
                    self.net.begin("append", self.append(lane, batch))

    def may_begin(self, lane: Lane) -> bool:
        if not lane.in_flight:
            return True
        return not self.net.waits and len(lane.in_flight) < 2 and not lane.in_flight[-1].unanswered

    def append(self, lane: Lane, batch: Batch) -> Actor:
        its = self.stream[lane.partition]
        records = [unit.record for unit in batch.units]
        answer = yield its.call(its.append, self.name, batch.number, batch.follows, records, waits=True)
        batch.tries -= 1
        if not batch.has_ended and not self.is_dead:
            self.process(lane, batch, reply_of(answer))
            self.go_on()

    def process(self, lane: Lane, batch: Batch, reply: AppendReply) -> None:
        """Process an answer, as ``Lanes`` does."""
        if batch.has_ended:
            return
        match lane.answered(batch, reply):
            case AppendVerdict.WRITTEN:
                for unit in batch.units:
                    unit.is_confirmed = True
                if (released := lane.end(batch)) is not None and released[1] is not None:
                    self.process(lane, released[0], released[1])
            case AppendVerdict.SEALED:
                self.sealed(lane, batch)

    def sealed(self, lane: Lane, batch: Batch) -> None:
        """Put back an append to a partition that takes no more; see which map follows."""
        lane.is_sealed = True
        back = lane.put_back(batch)
        lane.queue.extendleft(reversed([unit for each in back for unit in each.units]))
        if lane.partition >= self.router.base and not self.is_looking:
            self.is_looking = True
            self.net.start("look", self.look())

    def look(self) -> Actor:
        """Wait until the map says which partitions follow those that are sealed."""
        while any(lane.is_sealed for p, lane in self.lanes.items() if p >= self.router.base):
            yield None
            self.follow_map()
        self.is_looking = False
        self.go_on()

    def settle(self) -> None:
        """Move what waits in lanes of old partitions to the front of what follows; what is older last."""
        for lane in sorted(self.lanes.values(), key=lambda lane: -lane.partition):
            if lane.partition < self.router.base and lane.queue:
                moved: dict[int, list[Unit]] = {}
                for unit in lane.queue:
                    moved.setdefault(self.router.goes(unit.record[1]), []).append(unit)
                lane.queue.clear()
                for partition, units in moved.items():
                    self.lane(partition).queue.extendleft(reversed(units))

    # -- with an id ------------------------------------------------------------------------------

    def send_once(self, key: bytes, id: str) -> Actor:
        """Send a record once, though others send it, too."""
        unit, call = Unit(("id", key, id)), f"{self.name}{next(_calls)}"
        self.named.append(unit)
        while True:
            *older, partition = self.router.paths[key]
            asked = [self.stream[p] for p in older]
            answers = yield [its.call(its.send_once, id, call, None, waits=True) for its in asked]
            if None in answers:
                continue
            if any(answer[0] != "SEALED" for answer in answers):
                break
            its = self.stream[partition]
            answer = yield its.call(its.send_once, id, call, unit.record, waits=True)
            if answer and answer[0] != "SEALED":
                break
            if answer:
                yield from self.has_grown(partition)
        unit.is_confirmed = True

    def has_grown(self, partition: int) -> Actor:
        """Wait until the map says what follows a partition that is sealed."""
        while partition >= self.router.base:
            self.follow_map()
            yield None

    # -- later -----------------------------------------------------------------------------------

    def schedule(self, key: bytes, id: str, due: int) -> Actor:
        """Let a record be sent later, once."""
        unit, call = Unit(("later", key, id)), f"{self.name}{next(_calls)}"
        self.named.append(unit)
        while True:
            *older, partition = self.router.paths[key]
            is_moved = True
            for p in reversed(older):
                is_moved = is_moved and (yield from hand_on(self.stream, self.router, p, [id]))
            its = self.stream[partition]
            if is_moved:
                answer = yield its.call(its.later_put, id, Later(unit.record, call, due), waits=True)
                if answer is None:
                    continue
                if answer[0] != "SEALED":
                    break
            yield from self.has_grown(partition)
        unit.is_confirmed = True


def hand_on(stream: Stream, route: Router, partition: int, ids: Sequence[str] | None) -> Actor:
    """Move what waits in a sealed partition; return False if the map is too old.

    This is ``hand_on`` of ``redisio/data/later.py``. With ``ids`` it moves what is known of these.
    """
    its, moved = stream[partition], dict[str, Later]()
    while True:
        answer = yield its.call(its.leave_later, ids, moved)
        if answer is None:
            continue
        found: Mapping[str, Later] = answer[1]
        if not found:
            return True
        places = {name: stream[route.goes(each.record[1])] for name, each in found.items()}
        answers = yield [
            place.call(place.take_later, name, found[name], waits=True) for name, place in places.items()
        ]
        replies = zip(places, answers, strict=True)
        moved = {name: found[name] for name, taken in replies if taken and taken[0] == "OK"}
        if not moved and any(taken and taken[0] == "SEALED" for taken in answers):
            return False


def reply_of(answer: Answer | None) -> AppendReply:
    if answer is None:
        return UNANSWERED
    value = b"%d" % answer[1] if len(answer) > 1 else b""
    return AppendReply(AppendCode[answer[0]], value)
