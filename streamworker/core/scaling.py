"""How many workers a group wants: enough for what arrives and for what waits, and slow to fall.

One function takes the figures of one moment, and returns what is known after it. Nobody has to say how much a
worker can do: a group shows it while all of its workers have work waiting. Before it has shown that, the
answer does not rise above the workers that are there.
"""

from dataclasses import dataclass
from typing import NamedTuple

from streamworker.core.snapshot import GroupSnapshot

STEP_MS = 5_000
"""Figures that are closer together are not looked at: their rates would be chance."""
RATE_MS = 60_000
"""Over this time the rate of what arrives is measured."""
FALL_MS = 300_000
"""So long fewer workers must be enough, at each moment, before fewer are wanted."""
DRAIN_S = 120
"""What waits is to be worked off in this time."""
BUSY_S = 2
"""Workers are busy if so many seconds of work wait for them, both before and after."""
FULL, ROOMY = 0.9, 0.7
"""A worker is planned with this share of what it can do: more are wanted above the first, fewer if they stay
below the second. Between the two nothing changes, so that the answer does not swing."""
STUCK = ("halted", "retrying", "paused", "pausing")
"""Partitions that wait for a person or a record: more workers do not help them."""


class Flow(NamedTuple):
    """The figures of a group at one moment."""

    at_ms: int
    arrived: int
    committed: int
    lag: int
    """Records that wait in partitions that can go on."""
    workers: int
    """Workers that own partitions."""
    generation: int = 0
    is_spread: bool = True
    """Whether work waits for each of these workers."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What is known of a group, and how many workers it wants."""

    desired: int = 1
    flows: tuple[Flow, ...] = ()
    """Those of the last minute."""
    shown: float = 0.0
    """The records a second that one worker has shown it can do."""
    is_proven: bool = False
    """Whether it was busy when it showed that. If not, it can do at least that."""
    enough: tuple[tuple[int, int], ...] = ()
    """How many workers would have been enough with room, at each of the last moments."""


def flow_of(snapshot: GroupSnapshot) -> Flow:
    """Return the figures of a snapshot."""
    going = [view for view in snapshot.partitions if view.state not in STUCK]
    workers = {member.id for member in snapshot.members if member.state == "active" and member.partitions}
    return Flow(
        snapshot.taken_ms,
        snapshot.committed + snapshot.lag,
        snapshot.committed,
        sum(view.lag for view in going),
        len(workers),
        snapshot.generation,
        workers <= {view.owner for view in going if view.lag},
    )


def follow(scale: Scale, now: Flow, partitions: int) -> Scale:
    """Return what is known after the figures of one more moment.

    >>> scale = follow(Scale(), Flow(0, 0, 0, 0, 1), 8)
    >>> for s in range(15, 90, 15):  # One worker does 100 a second, and 400 arrive.
    ...     scale = follow(scale, Flow(s * 1000, 400 * s, 100 * s, 300 * s, 1), 8)
    >>> scale.shown, scale.desired
    (100.0, 7)
    """
    most = max(1, partitions)
    last = scale.flows[-1] if scale.flows else None
    if last is None or now.at_ms < last.at_ms or now.committed < last.committed:
        # The first figures, or the group was deleted and began anew.
        return Scale(min(most, max(1, now.workers)), (now,))
    if now.at_ms - last.at_ms < STEP_MS:
        return scale
    shown, is_proven = _shown(scale, last, now)
    flows = (*(flow for flow in scale.flows if now.at_ms - flow.at_ms <= RATE_MS), now)
    first = flows[0] if len(flows) > 1 else last
    rate = max(0, now.arrived - first.arrived) / (now.at_ms - first.at_ms) * 1000
    # A lag that one look exaggerates is gone at the next.
    work = rate + min(last.lag, now.lag) / DRAIN_S
    desired, enough = scale.desired, scale.enough
    if shown:
        roomy = _workers(work, shown * ROOMY, most)
        enough = (*((at, n) for at, n in enough if now.at_ms - at <= FALL_MS), (now.at_ms, roomy))
        if is_proven:
            desired = max(desired, _workers(work, shown * FULL, most))
        if now.at_ms - enough[0][0] > FALL_MS - RATE_MS:
            desired = min(desired, max(n for _, n in enough))
    return Scale(min(most, desired), flows, shown, is_proven, enough)


def _shown(scale: Scale, last: Flow, now: Flow) -> tuple[float, bool]:
    """Return what a worker has shown that it can do, and whether it was busy."""
    if not now.workers or (last.workers, last.generation) != (now.workers, now.generation):
        return scale.shown, scale.is_proven
    rate = (now.committed - last.committed) / (now.at_ms - last.at_ms) * 1000
    each, waits = rate / now.workers, min(last.lag, now.lag)
    if each and now.is_spread and last.is_spread and waits >= BUSY_S * rate:
        return ((scale.shown + each) / 2 if scale.is_proven else each), True
    return max(scale.shown, each), scale.is_proven


def _workers(work: float, each: float, most: int) -> int:
    """Return how many workers do some work, from one to the most that are of use."""
    return max(1, min(most, -int(-work // each)))
