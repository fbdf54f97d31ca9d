"""Decides when measured load makes partitions move, how many move, and when to stop.

Theory of operation
-------------------
One member, the **balancer**, looks at the measured loads of all members once per ``interval_ms``. It is the
first member in join order that is not silent. No election is needed: two balancers at once do no harm, since
each change of the document is a compare-and-set. The balancer writes its decision into the document, with the
weights that it used, and the other members follow it as they follow any change.

Moving is easy; the rules exist to avoid moving back and forth:

- **threshold**: moving begins when a member's level exceeds the mean by the threshold, and continues down to
  a fourth of it. Without the gap between the two it would begin again at once.
- **looks**: a giver must exceed the mean in that many looks in a row, at one generation.
- **damping**: a look moves a part of the excess; the next looks see the effect.
- **cap**: a limit of moves per minute, whichever member is the balancer: the document keeps the count.
- **relief**: after a move, the taker's level must be lower than the giver's was, by the threshold.

Why it comes to rest: sort the members' levels, highest first. A move removes the giver's level and inserts
two lower ones, so the list is lexicographically lower than before. There are finitely many ways to assign the
partitions, so there is a last move. Measuring with an error of up to e does not change that as long as (1 -
threshold) * (1 + e) / (1 - e) < 1: then each move that looks like a relief is one. At a threshold of 20 %
this holds up to e = 11 %.
"""

from collections.abc import Collection, Mapping

from streamworker.core.events import Effect
from streamworker.core.protocols.membership.document import MINUTE_MS, Change, Membership
from streamworker.core.protocols.membership.events import LoadsRead, ReadLoads, ReportLoad
from streamworker.core.protocols.membership.settings import BalanceRules
from streamworker.core.protocols.membership.weights import LEVEL, Scales

IDLE = 50
"""The least by which a giver's level exceeds the mean: a twentieth of a worker's time. Below that, nobody
would notice, and loads near zero differ by large factors for no reason."""
WORTH_PERCENT = 5
"""The least share of its load that all moves together must take off a giver, since each moved partition costs
a pause."""
SETTLED_PART = 4
"""Once begun, moving continues until no member's level exceeds the mean by this part of the threshold."""
DRIFT_PERCENT = 50
"""From this drift on, the balancer renews the document's weights, so that the next join or death uses true
ones."""


def plan(scales: Scales, rules: BalanceRules, most: int, *, has_begun: bool = False) -> dict[int, str]:
    """Return which partitions to give to whom, at most ``most``; ``scales`` shows the result.

    A member above the threshold that has no partition whose move would help, such as a worker with one hot
    partition, is left out, and the other members are compared with each other.

    >>> from streamworker.core.protocols.membership.weights import Weights
    >>> scales = Scales(["a", "b"], ["a", "a", "a", "b"], Weights((900, 200, 200, 100)))
    >>> plan(scales, BalanceRules(), most=10)
    {1: 'b'}
    >>> plan(scales, BalanceRules(), most=10)
    {2: 'b'}
    """
    percent = rules.threshold_percent // (SETTLED_PART if has_begun else 1)
    moves: dict[int, str] = {}
    among, done = list(scales.members), set[str]()
    while len(moves) < most:
        givers = [member for member in among if member not in done]
        giver = max(givers, key=scales.level, default=None)
        if giver is None or not _is_above(scales.level(giver), scales.mean(among), percent):
            return moves
        takers = [member for member in givers if member != giver]
        given = _give(giver, takers, scales.mean(among), scales, rules, most - len(moves))
        moves.update(given)
        if given:
            done.add(giver)
        else:
            among.remove(giver)
    return moves


def _is_above(level: int, mean: int, percent: int) -> bool:
    return level * 100 > mean * (100 + percent) and level - mean >= IDLE * LEVEL


def _give(
    giver: str, takers: list[str], mean: int, scales: Scales, rules: BalanceRules, most: int
) -> dict[int, str]:
    """Let one member give a part of its excess, its heaviest partitions that fit first."""
    excess = scales.load[giver] - mean * scales.capacity[giver] // LEVEL
    given: dict[int, str] = {}
    damped = ceiling = excess * rules.damping_percent // 100
    small = scales.heaviest(giver, damped)
    if small is None:
        # All partitions are heavier than the damped excess: move one of them, if that helps.
        lightest = scales.lightest(giver)
        ceiling = 0 if lightest is None else scales.weight[lightest]
    elif scales.sum_up_to(giver, excess) * 100 < scales.load[giver] * WORTH_PERCENT:
        return {}
    while takers and len(given) < most:
        partition = scales.heaviest(giver, ceiling)
        if partition is None:
            break
        weight = scales.weight[partition]
        taker = scales.taker(weight, takers)
        if scales.level(taker, weight) * 100 > scales.level(giver) * (100 - rules.threshold_percent):
            ceiling = weight - 1
            continue
        scales.move(partition, giver, taker)
        given[partition] = taker
        damped -= weight
        ceiling = min(ceiling, damped)
    return given


class Balancer:
    """One worker's part in sharing by load, which there is only under the assignment ``weighted``.

    It measures its load, looks at all loads while it is the balancer, and says what should change.
    """

    def __init__(self, rules: BalanceRules) -> None:
        self._rules = rules
        self._verdict: Change | None = None
        self._is_measuring = False
        self.is_our_turn = False
        """Whether this worker is the balancer."""
        self._look_ms: int | None = None
        """When to look next; None while this worker is not the balancer."""
        self._is_asking = False
        self._generation = 0
        """The generation that the counts below belong to."""
        self._uneven: dict[str, int] = {}
        """In how many looks in a row each member should have given a partition."""
        self._drifted = 0
        """In how many looks in a row the weights should have been renewed."""
        self._has_begun = False
        """Whether the balancer has begun to move partitions and is not finished."""
        self._renewed_ms: int | None = None
        """When this worker last renewed the weights alone, by the server's clock: at most once per minute."""

    def measure(self, now: Membership) -> list[Effect]:
        """Begin to measure the load of this worker's partitions, or stop, if the assignment has changed."""
        if self._is_measuring == (now.strategy == "weighted"):
            return []
        self._is_measuring = not self._is_measuring
        return [ReportLoad(self._rules.interval_ms if self._is_measuring else 0)]

    def take_turn(self, now: Membership, me: str, silent: Collection[str]) -> None:
        """Determine whether this worker is the balancer: the first active member that is not silent."""
        first = next((each for each in now.active_ids if each not in silent), "")
        self.is_our_turn = now.strategy == "weighted" and first == me

    def advance(self, now_ms: int, *, is_our_turn: bool) -> list[Effect]:
        """Read the loads when a look is due."""
        if not is_our_turn:
            self._look_ms, self._generation, self._has_begun = None, 0, False
            return []
        if self._look_ms is None:
            self._look_ms = now_ms + self._rules.interval_ms
        if self._is_asking or now_ms < self._look_ms:
            return []
        self._is_asking, self._look_ms = True, now_ms + self._rules.interval_ms
        return [ReadLoads()]

    def next_deadline_ms(self) -> int | None:
        """Return when ``advance`` has something to do next."""
        return None if self._is_asking else self._look_ms

    def failed(self) -> None:
        """Note that the loads could not be read: this look does not count."""
        self._is_asking = False

    def change(self, now: Membership) -> Change | None:
        """Return the change that the last look asks for, once; it is void at another generation."""
        verdict, self._verdict = self._verdict, None
        return verdict if verdict is not None and verdict.after.generation == now.generation else None

    def seen(self, event: LoadsRead, membership: Membership, me: str) -> Change | None:
        """Handle the measured loads; return a change once enough looks in a row have wanted it.

        Its cause is ``balance``, or ``weights`` if only the weights are renewed.
        """
        self._is_asking, self._verdict = False, None
        if self._look_ms is None or membership.strategy != "weighted":
            return None
        if membership.generation != self._generation:
            self._generation, self._uneven, self._drifted = membership.generation, {}, 0
        weights = _measured(event.loads, membership)
        if weights is None:
            return None
        measured = membership.with_weights(weights)
        scales = Scales(measured.active_ids, measured.owners, measured.weights)
        most = self._rules.moves_per_minute - membership.moves_in_minute(event.server_ms)
        moves = plan(scales, self._rules, most, has_begun=self._has_begun)
        givers = {membership.owners[partition] or "" for partition in moves}
        self._uneven = {giver: self._uneven.get(giver, 0) + 1 for giver in givers}
        self._drifted = self._drifted + 1 if _has_drifted(membership, weights) else 0
        self._has_begun = self._has_begun and (bool(moves) or most <= 0)
        lasting = {
            partition: taker
            for partition, taker in moves.items()
            if self._uneven[membership.owners[partition] or ""] >= self._rules.looks
        }
        if lasting:
            self._has_begun = True
            names = membership.names({membership.owners[p] or "" for p in lasting})
            self._verdict = Change("balance", names, measured.with_moves(lasting, event.server_ms))
            return self._verdict
        is_early = self._renewed_ms is not None and 0 <= event.server_ms - self._renewed_ms < MINUTE_MS
        if self._drifted >= self._rules.looks and not is_early:
            self._renewed_ms = event.server_ms
            self._verdict = Change("weights", membership.names({me}), measured)
        return self._verdict


def _measured(loads: Mapping[str, Mapping[int, int]], membership: Membership) -> tuple[int, ...] | None:
    """Return all weights: the owner's measurement, or else the document's weight of a partition.

    None while a member with partitions has measured nothing: it would count as idle.
    """
    weights = list(membership.weights.partitions or (0,) * membership.partitions)
    for partition, owner in enumerate(membership.owners):
        if owner is None or membership.present(owner) is None:
            continue
        if owner not in loads:
            return None
        if partition in loads[owner]:
            weights[partition] = max(1, loads[owner][partition])
    return tuple(weights)


def _has_drifted(membership: Membership, weights: tuple[int, ...]) -> bool:
    """Whether the document's weights are far from the measured ones."""
    known = membership.weights.known(membership.partitions)
    away = sum(abs(weights[p] - known[p]) for p in membership.active)
    return away * 100 > sum(weights) * DRIFT_PERCENT and away > IDLE * len(membership.active_ids)
