"""Servers that lose their last writes, and a network that loses answers, brings calls late and in any order.

A process is a generator, an :data:`Actor`. It yields the calls that it makes at once, and goes on with their
answers in their order; it yields None to let others go on. What it reads, it reads at once: that its next
call arrives later has the same effect as an old answer.
"""

import random
from collections.abc import Callable, Generator, Sequence
from typing import Any

COPIES = 6
"""How many of the last writes a server may lose that did not wait for them."""

Actor = Generator["Call | Sequence[Call] | None", Any, Any]


class Slot:
    """The keys of one partition, or of one stream's map: a server that goes back takes all of them along.

    Values are never changed in place, so that a copy of the dict is a copy of the slot.
    """

    def __init__(self, net: "Net") -> None:
        self.net = net
        self.data: dict[Any, Any] = {}
        self.copies: list[dict[Any, Any]] = [{}]
        """What a replica may have, after each write; the first is what it has for sure."""
        self.is_changed = False
        self.behind = self.failovers = 0

    def put(self, key: Any, value: Any) -> None:
        self.data[key] = value
        self.is_changed = True

    def again(self) -> None:
        """Write what is there, so that a wait covers it."""
        self.is_changed = True

    def call(self, script: Callable[..., Any], *args: Any, waits: bool = False) -> "Call":
        return Call(self, script, args, waits)

    def ran(self) -> None:
        """Let a replica have what a script has written, some time."""
        if self.net.fails_over:
            self.copies.append(self.data.copy())
            if len(self.copies) > COPIES and not self.net.waits:
                del self.copies[0]

    def kept(self) -> None:
        """Let a replica have all that is there."""
        if self.net.fails_over:
            self.copies = [self.data.copy()]

    def fail_over(self, lost: int) -> None:
        """Go on with what a replica has."""
        at = max(0, len(self.copies) - 1 - lost)
        del self.copies[at + 1 :]
        self.data = self.copies[at].copy()
        self.failovers += 1


class Call:
    """One script, to be run in one slot."""

    __slots__ = ("answer", "args", "place", "script", "slot", "task", "waits")

    def __init__(self, slot: Slot, script: Callable[..., Any], args: Sequence[Any], waits: bool) -> None:
        self.slot, self.script, self.args, self.waits = slot, script, args, waits
        self.answer: Any = None
        self.place = 0
        self.task: Task


class Task:
    """A process, and the calls whose answers it waits for."""

    __slots__ = ("actor", "answers", "is_over", "kind", "waiting")

    def __init__(self, kind: str, actor: Actor) -> None:
        self.kind, self.actor = kind, actor
        self.waiting = 0
        self.answers: list[Any] | None = None
        """The answers to several calls, until all are there."""
        self.is_over = False


class Net:
    """All processes, and the calls that are under way."""

    def __init__(self, dice: random.Random, *, fails_over: bool, waits: bool, wait_odds: float) -> None:
        self.dice, self.fails_over, self.waits, self.wait_odds = dice, fails_over, waits, wait_odds
        self.ready: list[Task] = []
        self.flying: list[Call] = []
        """Calls that have not arrived."""
        self.done: list[Call] = []
        """Calls whose answers are under way."""
        self.late: list[Call] = []
        """Calls that nobody waits for any more, and that may arrive."""
        self.seen: dict[str, int] = {}
        self.runs = 0
        """Calls that have arrived."""

    def pick(self, its: list[Any]) -> Any:
        """Take one out of a list, whichever."""
        at = int(self.dice.random() * len(its))
        its[at], its[-1] = its[-1], its[at]
        return its.pop()

    def start(self, kind: str, actor: Actor) -> Task:
        task = Task(kind, actor)
        self.ready.append(task)
        return task

    def begin(self, kind: str, actor: Actor) -> Task:
        """Start a process, which takes its first step at once."""
        task = Task(kind, actor)
        self.go_on(task)
        return task

    def end(self, task: Task) -> None:
        """Kill a process; its calls may still arrive."""
        task.is_over = True

    def go_on(self, task: Task, answer: Any = None) -> None:
        """Let a process take its next step."""
        if task.is_over:
            return
        try:
            calls = task.actor.send(answer)
        except StopIteration:
            task.is_over = True
            return
        if calls is None:
            self.ready.append(task)
            return
        if isinstance(calls, Call):
            calls = (calls,)
        else:
            task.answers = [None] * len(calls)
            if not calls:
                self.ready.append(task)
        task.waiting = len(calls)
        for place, call in enumerate(calls):
            call.task, call.place = task, place
            self.flying.append(call)

    def step(self) -> None:
        """Let one process that can go on."""
        if self.ready:
            task = self.pick(self.ready)
            answers, task.answers = task.answers, None
            self.go_on(task, answers)

    def run(self, call: Call) -> Any:
        """Run a call at its server; an answer that is not durable as it should be is none."""
        slot = call.slot
        slot.is_changed = False
        self.runs += 1
        answer = call.script(*call.args)
        name = f"{call.script.__name__} {answer[0]}"
        self.seen[name] = self.seen.get(name, 0) + 1
        if slot.is_changed:
            slot.ran()
            # A wait covers only what its own call has written, and all before that.
            if call.waits and self.waits:
                if self.dice.random() >= self.wait_odds:
                    return None
                slot.kept()
        return answer

    def arrive(self) -> None:
        if self.flying:
            call = self.pick(self.flying)
            call.answer = self.run(call)
            self.done.append(call)

    def hear(self) -> None:
        if self.done:
            call = self.pick(self.done)
            self.answered(call, call.answer)

    def answered(self, call: Call, answer: Any) -> None:
        task = call.task
        if task.is_over:
            return
        task.waiting -= 1
        if task.answers is None:
            self.go_on(task, answer)
            return
        task.answers[call.place] = answer
        if not task.waiting:
            answers, task.answers = task.answers, None
            self.go_on(task, answers)

    def lose(self) -> None:
        """Let one call have no answer; if it has not arrived, it may do so later."""
        its = (
            self.flying
            if self.dice.random() < len(self.flying) / (len(self.flying) + len(self.done) or 1)
            else self.done
        )
        if not its:
            return
        call = self.pick(its)
        if its is self.flying and self.dice.random() < 0.7:
            self.late.append(call)
        self.answered(call, None)

    def arrive_late(self) -> None:
        if self.late:
            self.run(self.pick(self.late))
            self.seen["late"] = self.seen.get("late", 0) + 1


def asked(slot: Slot, script: Callable[..., Any], *args: Any, waits: bool = True) -> Actor:
    """Make a call until it is answered."""
    while (answer := (yield slot.call(script, *args, waits=waits))) is None:
        pass
    return answer
