"""Scenarios: texts that say what happens to a group and when, and the transcripts of real cores for them.

A scenario is a text::

    # A second worker joins
    #
    # What there is to see, and where it comes from.
    # covers: 003.5 003.6

    given: membership, 4 partitions
       0 ms  w1 starts
     500 ms  show
     500 ms  w2 starts
     600 ms  end

       500 ms  (w2 starts)
       500 ms  w2  Started
                   -> ReadDocument

    result: generation 503; w1: 0-1; w2: 2-3

A scenario has no randomness: each way to the server takes 1 ms, a message 2 ms, a batch of records 40 ms,
each worker's first id ends in ``.1``, and the server's clock begins at 0, so that a generation and an epoch
are the times at which they were made. A transcript begins at ``show`` and leaves out the steps between
``hide`` and ``show``; after ``show only w1 w2`` it has only the steps of these workers.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from streamworker.core.protocols.registry import PROTOCOLS
from streamworker.core.protocols.setup import Setup, Timing
from streamworker.core.words import alike, name_of, ranges
from streamworker.errors import ConfigurationError
from streamworker.redisio.data.commit import CommitCode
from tests.simulator.checkers import Violation
from tests.simulator.clock import Dice
from tests.simulator.faults import QUIET, Fault, FaultKind
from tests.simulator.server.damage import DAMAGES
from tests.simulator.server.server import SimulatedServer
from tests.simulator.server.stored import Commit
from tests.simulator.transcript import Transcript
from tests.simulator.worker import SimWorker
from tests.simulator.world import BEHIND_MS, LAG_MS, World

CALL_MS = 1
"""Time of one way between a worker and the server."""
MESSAGE_MS = 2
"""Time from the control stream to a listener: a little longer than the answer to the sender takes."""
BATCH_MS = 40
HANG_MS = 5
"""Within this time a runner begins to handle a new entry."""


@dataclass(slots=True)
class Scenario:
    """A parsed scenario, with its expected transcript."""

    title: str
    about: list[str]
    """The lines of the description."""
    given: tuple[str, ...]
    steps: tuple[tuple[int, str], ...]
    transcript: list[str] = field(default_factory=list)
    result: str = ""

    def __str__(self) -> str:
        width = max(len(str(at_ms)) for at_ms, _ in self.steps)
        steps = [f"  {at_ms:>{width}} ms  {what}" for at_ms, what in self.steps]
        head = [f"# {self.title}", *(f"# {line}".rstrip() for line in self.about)]
        given = f"given: {', '.join(self.given)}"
        parts = [head, [given, *steps], self.transcript, [f"result: {self.result}"]]
        return "\n\n".join("\n".join(part) for part in parts) + "\n"


def read(text: str) -> Scenario:
    """Parse a scenario, or raise ConfigurationError; the transcript and the result may be missing."""
    head = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = next((at for at, line in enumerate(lines) if line.startswith("given: ")), None)
    if not head or found is None:
        raise _unclear("The text", "Begin with '# TITLE', and then 'given: PROTOCOL, N partitions'.")
    given = tuple(part.strip() for part in lines[found].removeprefix("given: ").split(","))
    steps: list[tuple[int, str]] = []
    rest = iter(lines[found + 1 :])
    for line in rest:
        if not line.strip():
            break
        match = re.fullmatch(r"\s*(\d+) ms  (.+)", line)
        if match is None:
            raise _unclear(repr(line), "Write each step as '500 ms  w1 starts'.")
        if steps and int(match[1]) < steps[-1][0]:
            raise _unclear(repr(line), "Write the steps in the order of their times.")
        steps.append((int(match[1]), match[2]))
    transcript = list(rest)
    result = next((line for line in transcript if line.startswith("result: ")), "")
    transcript = [line for line in transcript if line and line != result]
    return Scenario(head[0], head[1:], given, tuple(steps), transcript, result.removeprefix("result: "))


def play(scenario: Scenario) -> tuple[Scenario, tuple[Violation, ...]]:
    """Run a scenario; return it with its transcript and result, and the violations that were found."""
    world = ScriptedWorld(scenario.given)
    first = next((what for _, what in scenario.steps if what == "hide" or what.startswith("show")), "hide")
    if first != "hide":
        world.hide()
    for at_ms, what in scenario.steps:
        world.clock.run_for(at_ms - world.clock.now_ms)
        world.let(what)
    told = replace(scenario, transcript=world.transcript, result=world.result)
    return told, tuple(world.checker.violations)


def _impossible(what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"{what}.", remedy=remedy)


def _unclear(what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"{what} is no part of a scenario.", remedy=remedy)


class _Highest(Dice):
    """A generator without randomness: every time is the longest, and no unlikely event happens."""

    def random(self) -> float:
        """Return the highest number below 1."""
        return 1 - 2**-53

    def randrange(self, *_: Any) -> int:
        """Return 0, the first time of a clock."""
        return 0


class _TellingServer(SimulatedServer):
    """A server that reports the result of each commit if ``tell`` is set."""

    tell: Callable[[str], None] | None = None

    def commit(self, partition: int, commit: Commit) -> CommitCode:
        """Commit, and report it."""
        code = super().commit(partition, commit)
        if self.tell is not None:
            self.tell(
                f"{commit.owner} commits {partition} up to entry {commit.new} with epoch {commit.epoch}: "
                f"{code.name}"
            )
        return code


class ScriptedWorld(World):
    """A world that follows a scenario, as it is ``given``: the protocol, the sizes and other settings."""

    def __init__(self, given: Sequence[str]) -> None:
        self._given = list(given)
        protocol, assignment = self._take("|".join(PROTOCOLS)), self._take("sticky|weighted") or "range"
        if protocol is None or (partitions := self._take(r"([1-9]\d*) partitions?")) is None:
            raise _unclear(", ".join(given), "Name the protocol and the number of partitions.")
        self._story = Transcript()
        super().__init__(
            int(self._take(r"seed (\d+)") or 0),
            partitions=int(partitions),
            protocol=protocol,
            assignment=assignment,
            timing=Timing(founding_pause_ms=int(self._take(r"founding pause (\d+) ms") or 0)),
            entry_every_ms=None,
            start_ms=0,
            server=_TellingServer,
            trace=self._story,
        )
        self._hidden_at: int | None = None
        self._dice, self.random = self.random, _Highest()
        batch_ms = int(self._take(r"batches of ([1-9]\d*) ms") or BATCH_MS)
        self.usual = self.conditions = replace(QUIET, latency_ms=CALL_MS, batch_ms=batch_ms)
        self._lives: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(1))
        self.server.tells_connections = not self._take("the server does not tell of connections")
        if self._take("commits are shown"):
            assert isinstance(self.server, _TellingServer)
            self.server.tell = self.say
        every = self._take(r"entries every ([1-9]\d*) ms")
        if every is not None:
            every_ms = int(every)
            self.clock.after(every_ms, lambda: self._send_to_all(every_ms))
        if self._given:
            raise _unclear(repr(self._given[0]), "See the scenarios in tests/protocol for what may be given.")

    def _take(self, form: str) -> str | None:
        """Take out what is given in a form; return its number, or all of it if the form has no number."""
        for text in self._given:
            if (match := re.fullmatch(form, text)) is not None:
                self._given.remove(text)
                return match[match.lastindex or 0]
        return None

    def _send_to_all(self, every_ms: int) -> None:
        self.senders.send_to_all()
        self.clock.after(every_ms, lambda: self._send_to_all(every_ms))

    def setup(self, worker: SimWorker) -> Setup:
        """Return the setup of a worker's core, with readable ids and repeatable jitter."""
        return replace(
            super().setup(worker),
            nonce=lambda: str(next(self._lives[worker.name])),
            jitter=lambda most: self._dice.randint(0, most),
        )

    def latency_ms(self) -> int:
        """Return the time of a control message."""
        return MESSAGE_MS

    def grow(self, count: int) -> None:
        """Grow the stream by a generation of some partitions."""
        if count <= self.server.placement.live:
            raise _impossible("A stream does not shrink", "Name a higher number of partitions.")
        super().grow(count)

    # -- what happens --------------------------------------------------------------------------

    def let(self, what: str) -> None:
        """Perform a step of a scenario; raise ConfigurationError if there is no such step."""
        for form, do in HAPPENINGS.items():
            match = re.fullmatch(form, what)
            if match is not None:
                do(self, what, *match.groups())
                return
        raise _unclear(repr(what), "See the scenarios in tests/protocol for what may happen.")

    def worker(self, name: str) -> SimWorker:
        """Return the newest live worker of a name; raise ConfigurationError if there is none."""
        there = [each for each in self.workers if each.alive and not each.finished and each.name == name]
        if not there:
            raise _impossible(f"{name} is not there at {self.clock.now_ms} ms", "Start it before.")
        return there[-1]

    def partition(self, text: str) -> int:
        """Return a partition's number; raise ConfigurationError if the stream does not have it."""
        if int(text) >= len(self.server.partitions):
            raise _impossible(f"There is no partition {text}", "They are numbered from 0.")
        return int(text)

    def show(self, names: str = "") -> None:
        """Continue the transcript, with the steps of some workers or of all."""
        self._story.only, lines = frozenset(names.split()), self._story.lines
        if self._hidden_at is not None:
            del lines[self._hidden_at :]
            if lines:
                lines.append(f"{'...':>9}")
        self._hidden_at = None

    def hide(self) -> None:
        """Leave out all steps until ``show``."""
        self._hidden_at = len(self._story.lines)

    def say(self, text: str) -> None:
        """Add an incident to the transcript."""
        self._story.happened(self.clock.now_ms, text)

    def silently(self, fault: Fault) -> None:
        """Apply a fault that is already in the transcript."""
        self.trace = None
        self.happen(fault)
        self.trace = self._story

    # -- results -------------------------------------------------------------------------------

    @property
    def transcript(self) -> list[str]:
        """The lines that are shown."""
        return self._story.lines[: self._hidden_at]

    @property
    def result(self) -> str:
        """The owners of the locks."""
        membership = self.server.membership
        its = self.server.partitions
        parts = [] if membership is None else [f"generation {membership.generation}"]
        shares = alike({p: name_of(its[p].owner) or "nobody" for p in self.server.active})
        parts += [f"{owner}: {ranges(which)}" for owner, which in shares.items()]
        return "; ".join(parts)


Happening = Callable[..., None]


def _said(do: Happening) -> Happening:
    """Return a step that the transcript tells in the scenario's own words."""

    def happening(world: ScriptedWorld, what: str, *words: str) -> None:
        world.say(what)
        do(world, *words)

    return happening


def _befalls(kind: FaultKind) -> Happening:
    """Return a step that is a fault, of the worker that it names or of all."""

    def happening(world: ScriptedWorld, *words: str) -> None:
        *names, span_ms = words or ("10",)
        there = [worker for worker in world.workers if worker.alive and not worker.finished]
        pick = there.index(world.worker(names[0])) if names else 0
        world.silently(Fault(0, kind, pick, int(span_ms)))

    return _said(happening)


def _fails_over(world: ScriptedWorld, what: str, lag_ms: str, behind_ms: str | None) -> None:
    for text, known in ((lag_ms, LAG_MS), (behind_ms or "0", BEHIND_MS)):
        if int(text) not in known:
            raise _impossible(f"A replica is not {text} ms behind", f"Use one of {known}.")
    world.say(what)
    pick = LAG_MS.index(int(lag_ms)) + len(LAG_MS) * BEHIND_MS.index(int(behind_ms or 0))
    world.happen(Fault(0, FaultKind.FAILOVER, pick, 10))


def _damages(world: ScriptedWorld, _: str, how: str) -> None:
    if how not in DAMAGES:
        raise _impossible(f"No document {how}", f"Use one of {tuple(DAMAGES)}.")
    world.happen(Fault(0, FaultKind.DAMAGE, tuple(DAMAGES).index(how)))


def _entry(world: ScriptedWorld, _: str, partition: str | None) -> None:
    for each in range(len(world.server.partitions)) if partition is None else [world.partition(partition)]:
        world.senders.send(each)


def _hangs(world: ScriptedWorld, what: str, name: str, partition: str, how: str | None) -> None:
    """Send an entry that the worker handles for 20 s."""
    world.say(what)
    runner = world.worker(name).runners.get(world.partition(partition))
    if runner is None or runner.ended or runner.busy:
        raise _impossible(
            f"{name} cannot begin to handle an entry of partition {partition} at {world.clock.now_ms} ms",
            "Choose a time at which it owns the partition and does nothing.",
        )
    world.conditions = replace(world.conditions, stuck=1.0)
    world.senders.send(int(partition))

    def is_hanging() -> None:
        world.conditions = world.usual
        runner.stubborn = how is not None

    world.clock.after(HANG_MS, is_hanging)


def _tries_to_release(world: ScriptedWorld, _: str, name: str, partition: str, epoch: str) -> None:
    """Ask the server to release a lock as no core would."""
    owner = world.worker(name).owner
    done = world.server.release(world.partition(partition), owner, int(epoch))
    world.say(f"{owner} asks to release {partition} with epoch {epoch}: {'done' if done else 'no'}")


HAPPENINGS: dict[str, Happening] = {
    r"show": lambda world, _: world.show(),
    r"show only (.+)": lambda world, _, names: world.show(names),
    r"hide": lambda world, _: world.hide(),
    r"end": lambda _world, _: None,
    r"(w\w+) starts": lambda world, _, name: world.start(name),
    r"(w\w+) starts with static id (\w+)": lambda world, _, name, place: world.start(name, place),
    r"(w\w+) is asked to leave": lambda world, _, name: world.stop(world.worker(name)),
    r"(w\w+) is killed": lambda world, _, name: world.kill(world.worker(name)),
    r"(w\w+) stands still for (\d+) ms": _befalls(FaultKind.PAUSE),
    r"requests of (w\w+) are lost for (\d+) ms": _befalls(FaultKind.CUT),
    r"answers to (w\w+) are lost for (\d+) ms": _befalls(FaultKind.DEAF),
    r"(w\w+) has no connection for (\d+) ms": _befalls(FaultKind.DISCONNECT),
    r"control messages are lost for (\d+) ms": _befalls(FaultKind.SILENCE),
    r"Redis restarts with its data": _befalls(FaultKind.RESTART),
    r"Redis restarts without its data": _befalls(FaultKind.FLUSH),
    r"in (\d+) ms Redis fails over to a replica as it is now"
    r"(?:, and the clock of the locks is (\d+) ms behind)?": _fails_over,
    r"the membership document ((?:is|has|gives) .+)": _damages,
    r"an entry comes to (?:each partition|partition (\d+))": _entry,
    r"(w\w+) hangs in partition (\d+)( and cannot be stopped)?": _hangs,
    r"the store of (\w+) is emptied": _said(lambda world, _: world.server.empty_store()),
    r"the stream grows to (\d+) partitions": lambda world, _, count: world.grow(int(count)),
    r"the clock of (w\w+) goes at (\d+) thousandths": _said(
        lambda world, name, pace: world.worker(name).drift(int(pace))
    ),
    r"an operator requests: (pause|resume|retry|put) (\d+)": lambda world, _, order, p: (
        world.operator_request(world.partition(p), order)
    ),
    r"(w\w+) tries to release (\d+) with epoch (\d+)": _tries_to_release,
}
"""From the form of a step to the function that performs it."""
