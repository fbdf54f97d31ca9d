"""What may end a process, and whose turn it is to be run.

After a death, at most one thing of a process is at risk at a time, and it is named in Redis before. A worker
names a timer and a resource whenever it runs one, and a record once an owner has died. Middleware is named
with each record that is named. The next owner counts a name that a dead owner has left as a death of that
thing, and of nothing else.

A death counts as one more in a row only if its worker knew of the others when it began. So workers that are
lost together, each in a call of the same timer, accuse it once. After a death one worker at a time runs it in
a group, so that the next death takes one along.

So what was named at a death is run while nothing else of the process is. It asks for a turn; until the turn
ends, no other call begins, and the turn begins when those that run have ended. A timer or a resource also
takes a turn while records are named: then a death in it accuses no record, nor does a record's accuse it.

Things that are not known to be suspects yet may overlap, since a process with a hundred partitions would
otherwise stand still after each lost machine. Then one death may count against several things, once each.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from streamworker.core.ownership.tries import DEATHS_MIN

TURN_MAX_MS = 60_000
"""How long a suspect waits for its turn at most, and how long others wait for the end of a turn. A call may
take hours, and a partition must not wait for that."""


class Risk(NamedTuple):
    """Something beside a record that runs code of the program, in one partition of a group."""

    kind: str
    """``timer``, ``resource`` or ``middleware``."""
    name: str
    place: int
    """The partition."""

    @property
    def what(self) -> str:
        """Its kind and name.

        >>> Risk("timer", "sweep", 0).what
        'timer sweep'
        """
        return f"{self.kind} {self.name}"


class Runs(Protocol):
    """One that runs code of the program, such as a partition."""

    @property
    def is_at_risk(self) -> bool:
        """Whether such code runs now, or is named."""

    @property
    def takes_alone(self) -> bool:
        """Whether it takes records one by one, since an owner has died, and names each."""


class Turns:
    """The turns of one process."""

    def __init__(self, on_end: Callable[[], None] = lambda: None) -> None:
        self._all: set[Runs] = set()
        self.asked: dict[Runs, int] = {}
        """Since when each has waited; the first has the turn."""
        self._since_ms = 0
        """When the first has become the first."""
        self._on_end = on_end
        """Called at the end of each turn."""

    def join(self, who: Runs) -> None:
        """Take part: turns wait for its calls to end, and its calls for turns."""
        self._all.add(who)

    def leave(self, who: Runs, now_ms: int) -> None:
        """Take part no longer."""
        self._all.discard(who)
        self.end(who, now_ms)

    def ask(self, who: Runs, now_ms: int) -> bool:
        """Return whether it is the turn of ``who``, which keeps it until ``end``; ask again until it is."""
        if not self.asked:
            self._since_ms = now_ms
        since_ms = self.asked.setdefault(who, now_ms)
        if now_ms - since_ms > TURN_MAX_MS:
            return True
        if next(iter(self.asked)) is not who:
            return False
        return not any(each.is_at_risk for each in self._all if each not in self.asked)

    def end(self, who: Runs, now_ms: int) -> None:
        """Let the next one have its turn; ignored if ``who`` has none and waits for none."""
        if who in self.asked:
            was_first = next(iter(self.asked)) is who
            del self.asked[who]
            if was_first:
                self._since_ms = now_ms
            self._on_end()

    def may_start(self, who: Runs, now_ms: int) -> bool:
        """Return whether ``who`` may begin a call that is no suspect's."""
        return not self.asked or next(iter(self.asked)) is who or now_ms - self._since_ms > TURN_MAX_MS

    @property
    def is_careful(self) -> bool:
        """Whether records of this process are named."""
        return any(each.takes_alone for each in self._all)


def deaths_in_words(what: str, deaths: int) -> str:
    """Say how many workers have died in something, and whether it is held back.

    >>> deaths_in_words("timer sweep", 3)
    'timer sweep is held back: 3 workers died in a row in it'
    """
    died = f"{deaths} worker{'' if deaths == 1 else 's'} died in a row in"
    return f"{what} is held back: {died} it" if deaths >= DEATHS_MIN else f"{died} {what}"


def remedy_for(what: str) -> str:
    """Return what to do about something in which workers died.

    >>> remedy_for("timer sweep")
    'Correct it, then let it run again: `streamworker timers run-now MODULE:sweep`.'
    """
    kind, _, name = what.partition(" ")
    again = f"timers run-now MODULE:{name}" if kind == "timer" else "retry MODULE:PROCESSOR"
    return f"Correct it, then let it run again: `streamworker {again}`."
