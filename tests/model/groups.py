"""The workers of a group, and the runners of their partitions.

These are ``runtime/run/generations.py`` and the runner: a partition whose parents the group may not be done
with is filled with what they hold of its keys, and opened; a partition that takes no more is noted as done.
"""

from collections.abc import Mapping, Sequence
from itertools import count

from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import Message
from streamworker.redisio.group.following import first_of
from tests.model import growing
from tests.model.net import Actor, Net, Task, asked
from tests.model.outboxes import Outbox
from tests.model.scripts import Entry, Lock, Partition
from tests.model.senders import hand_on
from tests.model.streams import PLANNED_EVERY, Router, Stream, router

_owners = count()


class Crew:
    """One group of a stream, with all of its workers."""

    def __init__(
        self, net: Net, stream: Stream, name: str, target: Stream | None = None, *, has_timer: bool = False
    ) -> None:
        self.net, self.stream, self.name, self.target, self.has_timer = net, stream, name, target, has_timer
        self.router = router(stream.map)
        self.registered = self.router.total
        self.first = 0
        self.runs: dict[int, Run] = {}
        self.changing: tuple[int, ...] = ()
        self.start = "0"

    @property
    def active(self) -> range:
        """The partitions on which the group works."""
        return range(self.first, self.router.total)

    @property
    def longest(self) -> Router:
        """The longest map that any of its workers has seen; Redis may have lost the end of it."""
        return max(self.router, self.stream.longest, key=lambda its: len(its.counts))

    def lock(self, partition: int) -> Lock | None:
        return self.stream[partition].lock(self.name)

    def parents(self, partition: int) -> tuple[int, ...]:
        return self.router.parents[partition]

    def register(self) -> Actor:
        """Register the group in each partition of the map, and of the one that follows; the newest first.

        A call without an answer lets it begin anew.
        """
        answers: list[object] = [None]
        while None in answers:
            its, answers = self.stream.longest, []
            yield None
            held = [p for p in its.all if self.lock(p)]
            for each in reversed(its.generations):
                start = "0" if held and held[0] < each.start else self.start
                answers += yield [
                    self.stream[p].call(self.stream[p].register, self.name, start, its.parents[p])
                    for p in each
                ]
        self.registered = its.total

    def look(self) -> Actor:
        """Look where the group works, and mend what was left of a growth."""
        while True:
            now, following = self.stream.map, self.stream.growing
            if max(sum(following), self.router.total) > self.registered:
                yield from self.register()
            if len(now) > len(self.router.counts):
                self.router = router(now)
            left = [p for p in range(self.router.base) if not ((lock := self.lock(p)) and lock.done)]
            self.first = first_of(self.router, left)
            yield None
            if self.router.base in self.runs:
                yield from self.mend(following if following != now else ())
            yield None

    def mend(self, following: tuple[int, ...]) -> Actor:
        """Go on with a change that has stood since the last look, and mend what a failover has lost."""
        changing, self.changing = self.changing, following
        yield from growing.heal(self.stream, self.net.dice.choice(self.router.active))
        if changing and changing == self.changing:
            yield from growing.go_on(self.stream)
        yield from growing.restore(self.stream, self.router.counts)

    def acquire(self, partition: int) -> Actor:
        """Let some worker have a partition; the one before may not know of it yet."""
        its, owner = self.stream[partition], f"w{next(_owners)}"
        answer = yield its.call(its.acquire, self.name, owner, self.parents(partition))
        if answer is None:
            return
        if (before := self.runs.pop(partition, None)) and self.net.dice.random() < 0.5:
            before.end()
        run = self.runs[partition] = Run(self, its, owner, answer[1], answer[2])
        run.tasks.append(self.net.start("run", run.live()))


class Run:
    """One partition at one worker, while it owns it or thinks so."""

    def __init__(self, crew: Crew, its: Partition, owner: str, epoch: int, parents: tuple[int, ...]) -> None:
        self.crew, self.its, self.parents = crew, its, parents
        self.held = crew.name, owner, epoch
        self.at = self.ticked = 0
        self.counts: Mapping[bytes, int] = {}
        self.tasks: list[Task] = []
        self.outbox: Outbox | None = None

    def end(self) -> None:
        """The worker dies, or learns that it does not own the partition any more."""
        for task in self.tasks:
            self.crew.net.end(task)
        if self.crew.runs.get(self.its.number) is self:
            del self.crew.runs[self.its.number]

    @property
    def lock(self) -> Lock | None:
        return self.its.lock(self.crew.name)

    @property
    def is_owner(self) -> bool:
        return self.its.held(*self.held) is not None

    def live(self) -> Actor:
        """Do all that is to be done in the partition, until the worker loses it."""
        if not self.parents or (yield from self.inherit()):
            lock = self.its.held(*self.held)
            if lock:
                self.at, self.ticked = lock.checkpoint, lock.ticked
                self.counts = self.its.data.get(("state", self.crew.name), {})
                if self.crew.target is not None:
                    self.outbox = Outbox(self.its, self.held, self.crew.target)
                    yield from self.outbox.open()
                    self.tasks.append(self.crew.net.start("forward", self.outbox.forward()))
                while (yield from self.turn()):
                    yield None
        self.end()

    # -- what follows ----------------------------------------------------------------------------

    def inherit(self) -> Actor:
        """Wait until the group is done with the parents, take over what they hold, and open the partition."""
        while not all((lock := self.crew.lock(p)) and lock.done for p in self.parents):
            if not self.is_owner:
                return False
            yield None
        cut = (self.cut(self.its.number) or 0) if self.crew.has_timer else 0
        for p in self.parents:
            held = self.crew.stream[p].data.get(("state", self.crew.name), {})
            for key in self.crew.longest.keys[self.its.number]:
                if key in held and not (yield from self.fill({key: held[key]})):
                    return False
        answer = yield from asked(self.its, self.its.open, *self.held, self.parents, cut)
        return answer[0] == "OK"

    def fill(self, items: Mapping[bytes, int]) -> Actor:
        """Take over some keys; return False if the worker must acquire the partition again."""
        answer = yield from asked(self.its, self.its.fill, *self.held, self.parents, items)
        return answer[0] == "OK"

    # -- what comes ------------------------------------------------------------------------------

    def turn(self) -> Actor:
        """Do one thing; return False if the partition must be acquired again."""
        dice, is_old = self.crew.net.dice.random, self.its.number < self.crew.router.base
        # It may try to finish although records have not come to it yet, or a time is due.
        if is_old and dice() < 0.2 and (lock := self.lock) and not lock.done:
            yield from self.finish()
        entries = [entry for entry in self.its.log if entry[0] > self.at][: 1 + int(dice() * 2)]
        if entries:
            return (yield from self.handle(entries))
        if self.crew.has_timer and self.is_due:
            return (yield from self.tick())
        lock = self.lock
        its = (lock.owner, lock.epoch, lock.checkpoint, lock.parents) if lock else None
        if its != (*self.held[1:], self.at, ()):
            return dice() < 0.5  # A failover has taken it back, or another has it.
        if self.outbox is not None and not (yield from self.outbox.follow()):
            return False
        if not is_old:
            yield from self.send_due()
        return True

    def handle(self, entries: Sequence[Entry]) -> Actor:
        """Commit some entries with what they lead to."""
        sends: Sequence[Message] = ()
        last: EntryId | None = None
        if self.outbox is not None:
            if not (yield from self.outbox.follow()):
                return False
            sends, last = self.outbox.messages([record for _, record in entries]), self.outbox.last
        answer = yield from asked(
            self.its, self.its.commit, *self.held, entries, self.at, self.counts, sends, last
        )
        if answer[0] not in ("OK", "DUP"):
            return False
        self.at = entries[-1][0]
        for _, record in entries:
            self.counts = {**self.counts, record[1]: self.counts.get(record[1], 0) + 1}
        if self.outbox is not None:
            self.outbox.committed(sends)
        return True

    def cut(self, partition: int) -> int | None:
        """Return the last planned time of the generations before that of a partition, if it is known."""
        base = next(each.start for each in self.crew.router.generations if partition in each)
        opened: int | None = self.crew.stream.meta.data.get(("opened", base))
        return None if opened is None else self.crew.stream.cut(opened)

    @property
    def last_time(self) -> int | None:
        """The last planned time for which this partition calls the timer, if it takes no more."""
        its, here = self.crew.router, self.its.number
        if here >= its.base:
            return None
        return self.cut(next(each.stop for each in its.generations if here in each))

    @property
    def is_due(self) -> bool:
        """Whether the timer is to be called."""
        last = self.last_time
        is_over = last is not None and self.ticked >= last
        return not is_over and (self.ticked + 1) * PLANNED_EVERY <= self.crew.stream.clock

    def tick(self) -> Actor:
        """Call the timer for the next time that was planned."""
        keys = self.crew.longest.keys[self.its.number]
        answer = yield from asked(self.its, self.its.tick, *self.held, self.ticked + 1, keys, self.last_time)
        if answer[0] == "GAP" and self.is_owner:
            return True  # It is sealed, and the worker does not know the map yet.
        self.ticked += 1
        return answer[0] in ("OK", "DUP")

    def finish(self) -> Actor:
        """Note that the group is done with the partition, if that is so."""
        cut = (self.last_time or 0) if self.crew.has_timer else 0
        answer = yield self.its.call(self.its.finish, *self.held, "look", cut, waits=True)
        if answer and answer[0] == "OK":
            yield self.its.call(self.its.finish, *self.held, "done", cut)

    def send_due(self) -> Actor:
        """Send what is due, and take over what waits in the partitions before."""
        stream, route = self.crew.stream, self.crew.router
        for p in sorted(route.ancestors[self.its.number]):
            if any(each.waits for each in stream[p].data["later"].values()):
                yield from hand_on(stream, route, p, None)
        if any(each.waits for each in self.its.data["later"].values()):
            yield self.its.call(self.its.later_move, stream.clock)
