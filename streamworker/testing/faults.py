"""What can go wrong, how badly, and when: drawn from a seed, and taken away one by one.

``Conditions`` is the weather that all workers are in. A ``Fault`` is something that happens at a
moment. A plan is a list of faults in the order of their time, and the simulator brings them to a
group: which worker is meant is decided when it happens, among those that are there.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from streamworker.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Conditions:
    """How bad things are. Numbers between 0 and 1 are probabilities."""

    lost: float = 0.0
    """A call gets no answer: not done, done unheard, or done after everybody gave up."""
    repeated: float = 0.0
    """A request arrives a second time, some seconds later."""
    control_lost: float = 0.0
    latency_ms: int = 10
    """Longest way there or back. Each call draws its own, so that answers overtake each other."""
    batch_ms: int = 400
    stuck: float = 0.0
    """A batch takes ``STUCK_MS``, and half of these cannot be cancelled."""
    halted: float = 0.0
    """A handler gives up on a record."""


QUIET = Conditions()


class Kind(Enum):
    """What may happen."""

    START = "start"
    STOP = "stop"
    HERD = "herd"
    """Several start at once."""
    FLAP = "flap"
    """One starts and stops again, some times over."""
    KILL = "kill"
    PAUSE = "pause"
    """One stands still, wakes later, and goes on as if nothing had been."""
    SLOW = "slow"
    """One takes its time for everything: its loop is busy."""
    DRIFT = "drift"
    """One's clock goes at another pace from now on."""
    ROLL = "roll"
    """One restarts, and comes back under its name and its static id if it has one."""
    STUCK = "stuck"
    """Handlers do not come back for long, and some cannot be stopped."""
    DISCONNECT = "disconnect"
    """One loses its connection, and gets another later."""
    CUT = "cut"
    """One's requests do not arrive, and the server still sees its connection."""
    DEAF = "deaf"
    """One's requests arrive, and no answer comes back."""
    LOST = "lost"
    """Answers are lost, delayed, repeated and overtaken for a while, for everybody."""
    SILENCE = "silence"
    """The control stream is not heard for a while."""
    RESTART = "restart"
    """Redis restarts with its data."""
    FLUSH = "flush"
    """Redis restarts without its data."""
    FAILOVER = "failover"
    """A replica takes over, which has not heard of the latest writes."""
    DAMAGE = "damage"
    """Another program writes over the membership document, heartbeats or loads."""
    REPARTITION = "repartition"
    """The app has more partitions from now on."""


GROUPS: dict[str, tuple[Kind, ...]] = {
    "none": (),
    "churn": (Kind.START, Kind.STOP, Kind.HERD, Kind.FLAP),
    "workers": (Kind.KILL, Kind.PAUSE, Kind.SLOW, Kind.DRIFT, Kind.ROLL, Kind.STUCK),
    "network": (Kind.DISCONNECT, Kind.CUT, Kind.DEAF, Kind.LOST, Kind.SILENCE),
    "redis": (Kind.RESTART, Kind.FLUSH, Kind.FAILOVER, Kind.DAMAGE),
    "app": (Kind.REPARTITION,),
    "all": tuple(Kind),
}

SPANS_MS: dict[Kind, tuple[int, ...]] = {
    Kind.PAUSE: (500, 3_000, 12_000, 35_000),
    Kind.SLOW: (5_000, 15_000),
    Kind.ROLL: (50, 500, 3_000, 12_000),
    Kind.STUCK: (3_000,),
    Kind.DISCONNECT: (10, 300, 3_000, 15_000),
    Kind.CUT: (1_000, 4_000, 15_000),
    Kind.DEAF: (1_000, 4_000, 15_000),
    Kind.LOST: (2_000, 10_000),
    Kind.SILENCE: (3_000, 10_000),
    Kind.RESTART: (10, 1_000, 5_000),
    Kind.FLUSH: (10, 1_000, 5_000),
    Kind.FAILOVER: (10, 1_000, 5_000),
}
"""How long what happens may last; for a restart, how long Redis is away."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens."""

    at_ms: int
    """After the start."""
    kind: Kind
    pick: int
    """Chooses among the workers that are there, and whatever else there is to choose."""
    span_ms: int = 0

    def __str__(self) -> str:
        lasting = f" for {self.span_ms} ms" if self.span_ms else ""
        return f"{self.at_ms:>6} ms  {self.kind.value} #{self.pick}{lasting}"


def kinds_of(text: str) -> tuple[Kind, ...]:
    """Read what ``--faults`` takes: names of groups and of kinds, separated by commas.

    Raises
    ------
    ConfigurationError
        For a name that is neither.

    Examples
    --------
    >>> [kind.value for kind in kinds_of("churn,kill")]
    ['start', 'stop', 'herd', 'flap', 'kill']
    """
    found: dict[Kind, None] = {}
    for name in filter(None, (each.strip() for each in text.split(","))):
        if name in GROUPS:
            found.update(dict.fromkeys(GROUPS[name]))
        elif name in Kind._value2member_map_:
            found[Kind(name)] = None
        else:
            known = ", ".join([*GROUPS, *(kind.value for kind in Kind)])
            raise ConfigurationError(f"There is no fault {name!r}.", remedy=f"Use some of: {known}.")
    return tuple(found)


def draw(random: Random, kinds: Collection[Kind], during_ms: int, most: int = 12) -> tuple[Fault, ...]:
    """Draw a plan of up to ``most`` faults."""
    if not kinds:
        return ()
    choices = tuple(kinds)
    faults: list[Fault] = []
    for _ in range(random.randint(1, most)):
        kind = random.choice(choices)
        span_ms = random.choice(SPANS_MS.get(kind, (0,)))
        faults.append(Fault(random.randrange(during_ms), kind, random.randrange(1_000), span_ms))
    return tuple(sorted(faults, key=lambda fault: fault.at_ms))


def smaller(plan: Sequence[Fault]) -> list[tuple[Fault, ...]]:
    """Return the plans that lack something of this one: a half first, then one fault each."""
    half = len(plan) // 2
    halves = [tuple(plan[half:]), tuple(plan[:half])] if half > 1 else []
    return halves + [(*plan[:i], *plan[i + 1 :]) for i in range(len(plan))]
