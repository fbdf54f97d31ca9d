"""A drawn schedule: streams that grow while all that can fail does.

A stream grows once or twice while producers send to it, its groups handle it, timers are called, and a group
sends what it handles to another stream, which grows, too. A third group comes late. Answers are lost, calls
come late and in any order, servers go back, workers take partitions from each other and go on as if they had
them, commands and producers die. Then the faults end, and all must come to rest.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tests.model import growing, outboxes
from tests.model.groups import Crew
from tests.model.judging import Broken, judge
from tests.model.net import Actor, Net, Task
from tests.model.senders import Producer
from tests.model.streams import KEYS, Stream, router

SHAPES = ((1, 2), (2, 3), (1, 2, 3), (2, 4), (2, 3, 4), (3, 4), (1, 3, 4))
TARGETS = ((1, 2), (2, 3), (1, 2, 3))
STEPS = 900
SENDS = 26
"""Records that producers send in lanes."""
TURNS = 1_500
"""After so many turns without faults a schedule stands for ever."""

ODDS = {
    "go_on": 34,
    "arrive": 28,
    "hear": 22,
    "lose": 5,
    "arrive_late": 1,
    "send": 6,
    "send_named": 2,
    "acquire": 4,
    "grow": 2,
    "kill": 1,
    "trim": 2,
    "fail_over": 3,
    "come": 2,
}
"""How often each step is drawn."""


class Traits(NamedTuple):
    """What a schedule is like."""

    fails_over: bool
    waits: bool
    breaks: bool
    kills: bool
    trims: bool
    comes: bool
    chains: bool
    times: bool
    names: bool
    aims: bool
    """Whether servers go back soon after writes that are not durable."""
    steals: float
    wait_odds: float
    slow: str
    """The kind of processes that are slow."""


def traits_of(dice: random.Random) -> Traits:
    def is_so(odds: float) -> bool:
        return dice.random() < odds

    fails_over = is_so(0.6)
    waits = fails_over and is_so(0.75)
    return Traits(
        fails_over,
        waits,
        breaks=is_so(0.7),
        kills=is_so(0.5),
        trims=is_so(0.6),
        comes=is_so(0.4),
        chains=(waits or not fails_over) and is_so(0.35),
        times=(waits or not fails_over) and is_so(0.35),
        names=is_so(0.5),
        aims=is_so(0.6),
        steals=dice.choice((0.1, 0.4, 1.0)),
        wait_odds=dice.choice((0.25, 0.5, 0.9)),
        slow=dice.choice(("", "", "grow", "look", "A", "B", "run")),
    )


class World:
    """All that there is in one schedule."""

    def __init__(self, seed: int) -> None:
        dice = self.dice = random.Random(seed)
        outboxes.forget()
        its = self.traits = traits_of(dice)
        net = self.net = Net(dice, fails_over=its.fails_over, waits=its.waits, wait_odds=its.wait_odds)
        source = Stream(net, "s", dice.choice(SHAPES))
        self.streams = [source]
        self.crews: list[Crew] = []
        target = None
        if its.chains:
            target = Stream(net, "t", dice.choice(TARGETS))
            self.streams.append(target)
            self.found("T", target)
        self.found("A", source, target=target, has_timer=its.times)
        self.found("B", source)
        self.source = source
        self.producers = [Producer(net, source, "P0")]
        self.tools: list[Task] = []
        self.late: Crew | None = None
        self.names = 0
        self.grow_at = dice.randrange(10, 90)
        steps = {step: odds for step, odds in ODDS.items() if self.may(step)}
        self.steps: list[Callable[[], None]] = [
            getattr(self, step, None) or getattr(net, step)
            for step, odds in steps.items()
            for _ in range(odds)
        ]

    def may(self, step: str) -> bool:
        its = self.traits
        return {
            "lose": its.breaks,
            "arrive_late": its.breaks,
            "kill": its.kills,
            "trim": its.trims,
            "come": its.comes,
            "send_named": its.names,
            "fail_over": its.fails_over,
        }.get(step, True)

    def found(
        self, name: str, stream: Stream, *, target: Stream | None = None, has_timer: bool = False
    ) -> None:
        """Begin with a group that is registered everywhere."""
        crew = Crew(self.net, stream, name, target, has_timer=has_timer)
        self.crews.append(crew)
        for p in crew.router.all:
            stream[p].register(name, "0", ())
            stream[p].kept()
        self.net.start("look", crew.look())

    # -- steps -----------------------------------------------------------------------------------

    def go_on(self) -> None:
        net = self.net
        if net.ready:
            task = net.pick(net.ready)
            if task.kind == self.traits.slow and self.dice.random() < 0.9:
                net.ready.append(task)
                return
            answers, task.answers = task.answers, None
            net.go_on(task, answers)

    def send(self) -> None:
        if not self.source.is_changing and self.dice.random() < 0.6:
            return
        producer = self.producers[int(self.dice.random() * len(self.producers))]
        if sum(len(each.units) for each in self.producers) < SENDS:
            producer.send(self.dice.choice(KEYS))
            if self.dice.random() < 0.1:
                producer.follow_map()

    def send_named(self) -> None:
        producer = self.producers[-1]
        self.names += 1
        if self.names > 14:
            return
        key = KEYS[int(self.dice.random() * 2)]
        if self.dice.random() < 0.6:
            self.net.start("named", producer.send_once(key, f"i{key!r}{self.dice.randrange(3)}"))
        else:
            due = self.source.clock + self.dice.randrange(60)
            self.net.start("named", producer.schedule(key, f"l{key!r}{self.dice.randrange(3)}", due))

    def acquire(self) -> None:
        crew = self.crews[int(self.dice.random() * len(self.crews))]
        free = [p for p in crew.active if p not in crew.runs]
        if free:
            self.net.begin("acquire", crew.acquire(self.dice.choice(free)))
        elif self.dice.random() < self.traits.steals:
            self.net.begin("acquire", crew.acquire(self.dice.choice(crew.active)))

    def grow(self) -> None:
        if self.source.clock < self.grow_at and self.dice.random() < 0.9:
            return
        stream = self.streams[int(self.dice.random() * len(self.streams))]
        self.tools = [each for each in self.tools if not each.is_over]
        if len(self.tools) < 2 and len(stream.map) < len(stream.shape):
            self.tools.append(self.net.start("grow", growing.grow(stream)))

    def kill(self) -> None:
        """A command dies, or a producer."""
        if self.tools and self.dice.random() < 0.7:
            self.net.end(self.tools.pop())
        elif self.dice.random() < 0.3:
            if self.dice.random() < 0.3:
                self.producers[-1].is_dead = True
            self.producers.append(Producer(self.net, self.source, f"P{len(self.producers)}"))

    def trim(self) -> None:
        its = self.source.partitions
        its[int(self.dice.random() * len(its))].trim()

    def fail_over(self) -> None:
        stream = self.streams[int(self.dice.random() * len(self.streams))]
        slots = [stream.meta, *stream.partitions]
        if self.traits.aims:
            slots = [slot for slot in slots if len(slot.copies) > 1] or slots
        slots[int(self.dice.random() * len(slots))].fail_over(int(self.dice.random() * 5))

    def come(self) -> None:
        """A group comes while the stream grows."""
        if self.late is None and self.dice.random() < (0.9 if self.source.is_changing else 0.1):
            self.late = Crew(self.net, self.source, "C")
            self.late.start = self.dice.choice(("0", "0", "$"))
            self.net.start("look", self.arrival(self.late))

    def arrival(self, crew: Crew) -> Actor:
        yield from crew.register()
        self.crews.append(crew)
        yield from crew.look()

    def tick(self) -> None:
        for stream in self.streams:
            stream.clock += 1
            for its in stream.partitions:
                its.clock = stream.clock

    # -- a schedule ------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the schedule; raise Broken if a promise does not hold."""
        steps, dice = self.steps, self.dice
        for at in range(STEPS):
            if at & 3 == 0:
                self.tick()
            steps[int(dice.random() * len(steps))]()
        self.settle()
        judge(self)

    def settle(self) -> None:
        """Let all come to rest, without faults."""
        net, dice = self.net, self.dice.random
        net.wait_odds = 1.0
        for turn in range(TURNS):
            for _ in range(len(net.ready)):
                net.step()
            while net.flying:
                net.arrive()
            while net.done:
                net.hear()
            if dice() < 0.3:
                net.arrive_late()
            if turn % 3 == 0:
                self.tick()
                for crew in self.crews:
                    for p in crew.active:
                        if p not in crew.runs:
                            net.begin("acquire", crew.acquire(p))
                for producer in self.producers:
                    producer.go_on()
                if self.is_at_rest:
                    return
        raise Broken("stands for ever")

    def is_forsaken(self, producer: Producer) -> bool:
        """Whether a sender waits for the map of a seal, and failovers have lost both: it must start again.

        Where writes are durable, neither can be lost.
        """
        is_strict = self.traits.waits or not self.traits.fails_over
        waits_for = [p for p, lane in producer.lanes.items() if lane.is_sealed and p >= producer.router.base]
        return not is_strict and any(not self.source[p].sealed for p in waits_for)

    @property
    def is_at_rest(self) -> bool:
        if not all(map(has_grown, self.streams)):
            return False
        if self.late is not None and self.late not in self.crews:
            return False
        living = [producer for producer in self.producers if not producer.is_dead]
        if not all(producer.is_idle or self.is_forsaken(producer) for producer in living):
            return False
        return all(map(is_through, self.crews)) and not any(
            each.waits for its in self.source.partitions for each in its.data["later"].values()
        )


def has_grown(stream: Stream) -> bool:
    """Whether no change is under way, and nothing of one is left."""
    base = router(stream.map).base
    return not stream.is_changing and all(
        bool(its.sealed) == (its.number < base) for its in stream.partitions
    )


def is_through(crew: Crew) -> bool:
    """Whether a group has handled all, works on the newest generation alone, and owes no message."""
    if crew.router.counts != crew.stream.map:
        return False
    for p in crew.router.all:
        lock, its = crew.lock(p), crew.stream[p]
        if lock is None or lock.parents or any(at > lock.checkpoint for at, _ in its.log):
            return False
        if (p < crew.router.base and not lock.done) or its.data.get(("box", crew.name)):
            return False
    return True


def violation(seed: int) -> tuple[str, Counter[str]]:
    """Run the schedule of a seed; return what it broke, and what happened in it."""
    world = World(seed)
    try:
        world.run()
        why = ""
    except Broken as broken:
        why = str(broken)
    seen = Counter(world.net.seen)
    seen["failovers"] = sum(s.failovers for each in world.streams for s in (each.meta, *each.partitions))
    seen["growths"] = sum(len(stream.map) - 1 for stream in world.streams)
    return why, seen
