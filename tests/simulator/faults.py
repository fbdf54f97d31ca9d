"""Faults: their kinds, and plans that are drawn from a seed and shrunk.

``Conditions`` holds for all workers. A plan is a list of faults in the order of their times. The worker of
a fault is chosen among the live ones when it happens.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from streamworker.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of the network and the handlers. Numbers from 0 to 1 are probabilities."""

    lost: float = 0.0
    """A call gets no answer: the server never executes it, executes it, or executes it after the timeout."""
    repeated: float = 0.0
    """A request arrives a second time, some seconds later."""
    control_lost: float = 0.0
    latency_ms: int = 10
    """Longest time of one way. Each call draws its own, so answers may overtake each other."""
    batch_ms: int = 400
    stuck: float = 0.0
    """A batch takes ``STUCK_MS``, and half of these cannot be cancelled."""


QUIET = Conditions()


class FaultKind(Enum):
    """The kinds of faults and changes."""

    START = "start"
    STOP = "stop"
    HERD = "herd"
    """Several workers start at once."""
    FLAP = "flap"
    """A worker starts and soon stops, several times."""
    KILL = "kill"
    PAUSE = "pause"
    """A worker is paused, and continues later."""
    SLOW = "slow"
    """A worker's event loop is busy."""
    DRIFT = "drift"
    """A worker's clock runs at another rate from now on."""
    ROLL = "roll"
    """A worker restarts; one with a static id keeps its name and id."""
    STUCK = "stuck"
    """Handlers take long, and some cannot be cancelled."""
    DISCONNECT = "disconnect"
    """A worker loses its connection, and reconnects later."""
    CUT = "cut"
    """A worker's requests are lost, and the server still has its connection."""
    DEAF = "deaf"
    """A worker's requests arrive, and the answers are lost."""
    LOST = "lost"
    """For a time, calls of all workers are lost, delayed and repeated."""
    SILENCE = "silence"
    """For a time, messages of the control stream are lost."""
    RESTART = "restart"
    """Redis restarts with its data."""
    FLUSH = "flush"
    """Redis restarts without its data."""
    FAILOVER = "failover"
    """A replica that lacks the latest writes takes over."""
    DAMAGE = "damage"
    """Another program overwrites the membership document, heartbeats or loads."""
    REPARTITION = "repartition"
    """The stream has more partitions from now on."""
    ORDER = "order"
    """An operator pauses a partition and resumes it later, or has it retried."""


GROUPS: dict[str, tuple[FaultKind, ...]] = {
    "none": (),
    "churn": (FaultKind.START, FaultKind.STOP, FaultKind.HERD, FaultKind.FLAP),
    "workers": (
        FaultKind.KILL,
        FaultKind.PAUSE,
        FaultKind.SLOW,
        FaultKind.DRIFT,
        FaultKind.ROLL,
        FaultKind.STUCK,
    ),
    "network": (FaultKind.DISCONNECT, FaultKind.CUT, FaultKind.DEAF, FaultKind.LOST, FaultKind.SILENCE),
    "redis": (FaultKind.RESTART, FaultKind.FLUSH, FaultKind.FAILOVER, FaultKind.DAMAGE),
    "app": (FaultKind.REPARTITION,),
    "operator": (FaultKind.ORDER,),
    "all": tuple(FaultKind),
}

SPANS_MS: dict[FaultKind, tuple[int, ...]] = {
    FaultKind.PAUSE: (500, 3_000, 12_000, 35_000),
    FaultKind.SLOW: (5_000, 15_000),
    FaultKind.ROLL: (50, 500, 3_000, 12_000),
    FaultKind.STUCK: (3_000,),
    FaultKind.DISCONNECT: (10, 300, 3_000, 15_000),
    FaultKind.CUT: (1_000, 4_000, 15_000),
    FaultKind.DEAF: (1_000, 4_000, 15_000),
    FaultKind.LOST: (2_000, 10_000),
    FaultKind.SILENCE: (3_000, 10_000),
    FaultKind.RESTART: (10, 1_000, 5_000),
    FaultKind.FLUSH: (10, 1_000, 5_000),
    FaultKind.FAILOVER: (10, 1_000, 5_000),
    FaultKind.ORDER: (300, 3_000, 15_000),
}
"""Possible durations of a fault; for a restart, how long Redis is unavailable."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at one time."""

    at_ms: int
    """Time since the start."""
    kind: FaultKind
    pick: int
    """A random number that chooses the worker and other variants of the fault."""
    span_ms: int = 0

    def __str__(self) -> str:
        lasting = f" for {self.span_ms} ms" if self.span_ms else ""
        return f"{self.at_ms:>6} ms  {self.kind.value} #{self.pick}{lasting}"


def kinds_of(text: str) -> tuple[FaultKind, ...]:
    """Parse the value of ``--faults``: names of groups and of kinds, separated by commas.

    Raise ConfigurationError if a name is neither.

    >>> [kind.value for kind in kinds_of("churn,kill")]
    ['start', 'stop', 'herd', 'flap', 'kill']
    """
    found: dict[FaultKind, None] = {}
    for name in filter(None, (each.strip() for each in text.split(","))):
        if name in GROUPS:
            found.update(dict.fromkeys(GROUPS[name]))
        elif name in FaultKind._value2member_map_:
            found[FaultKind(name)] = None
        else:
            known = ", ".join([*GROUPS, *(kind.value for kind in FaultKind)])
            raise ConfigurationError(f"There is no fault {name!r}.", remedy=f"Use some of: {known}.")
    return tuple(found)


def draw(random: Random, kinds: Collection[FaultKind], during_ms: int) -> tuple[Fault, ...]:
    """Draw a plan of up to a dozen faults."""
    if not kinds:
        return ()
    choices = tuple(kinds)
    faults: list[Fault] = []
    for _ in range(random.randint(1, 12)):
        kind = random.choice(choices)
        span_ms = random.choice(SPANS_MS.get(kind, (0,)))
        faults.append(Fault(random.randrange(during_ms), kind, random.randrange(1_000), span_ms))
    return tuple(sorted(faults, key=lambda fault: fault.at_ms))


def smaller(plan: Sequence[Fault]) -> list[tuple[Fault, ...]]:
    """Return smaller plans: first each half of this one, then the plans without one fault."""
    half = len(plan) // 2
    halves = [tuple(plan[half:]), tuple(plan[:half])] if half > 1 else []
    return halves + [(*plan[:i], *plan[i + 1 :]) for i in range(len(plan))]
