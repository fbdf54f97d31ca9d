"""When measured load makes partitions move, how many, and when no longer.

Theory of operation
-------------------
One member, the **balancer**, looks at what all members measured, once in ``interval_ms``. It is the
first in join order that is not silent; nobody elects it, and two at once do no harm, since each
change of the document is a compare-and-set. What it decides it writes into the document, with the
weights that it used, and the others follow that as they follow any change.

Moving is easy; not moving back and forth is what the rules are for:

- **threshold**: it begins when somebody stands so much above the mean, and goes on until a fourth
  of that. Without the gap between the two it would begin again at once.
- **looks**: who gives was above in that many looks in a row, at one generation.
- **damping**: a look moves a part of the excess; the next ones see what that led to.
- **cap**: so many moves a minute, whoever is the balancer; the document keeps the count.
- **relief**: a move must leave the taker lower than the giver was, by the threshold.

Why it comes to rest: sort the members' levels, highest first. A move takes the giver's level away
and puts two lower ones in, so the list is lower than before in the order of a dictionary, and with
finitely many ways to share, there is a last move. Measuring with an error of up to e does not
change that as long as (1 - threshold) * (1 + e) / (1 - e) < 1: then each move that looks like a
relief is one. At a threshold of 20 % this holds up to e = 11 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from streamworker.core.events import Effect, LoadsRead, ReadLoads
from streamworker.core.membership import MINUTE_MS, Membership
from streamworker.core.weights import LEVEL, Scales

IDLE = 50
"""A giver stands at least so much above the mean: a twentieth of a worker's time. Below, nobody
would notice, and loads near zero differ by large factors for no reason."""
WORTH_PERCENT = 5
"""What all its moves together would take off a giver, at least: a partition costs a pause."""
SETTLED_PART = 4
"""What was begun goes on until nobody stands above the mean by this part of the threshold."""
DRIFT_PERCENT = 50
"""From here on the document's weights are renewed, so that the next join or death goes by true ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceRules:
    """The rules of ``weighted``; see ``Settings`` for why they are what they are."""

    interval_ms: int = 5_000
    threshold_percent: int = 20
    looks: int = 3
    damping_percent: int = 50
    moves_per_minute: int = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """A change of the document that the balancer wants."""

    cause: str
    """``balance``, or ``weights`` where only these are renewed."""
    before: int
    """The generation that it was decided on; at another one it means nothing."""
    after: Membership


def plan(scales: Scales, rules: BalanceRules, most: int, *, has_begun: bool = False) -> dict[int, str]:
    """Return which partitions to give to whom, at most so many; ``scales`` shows the result.

    Whoever stands above the threshold and can give nothing that would help, as a worker with one
    hot partition, is left out, and the others are compared with each other.

    Examples
    --------
    >>> from streamworker.core.weights import Weights
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
    """Let one member give a part of what it has too much, its heaviest partitions that fit first."""
    excess = scales.load[giver] - mean * scales.capacity[giver] // LEVEL
    given: dict[int, str] = {}
    damped = ceiling = excess * rules.damping_percent // 100
    small = scales.heaviest(giver, damped)
    if small is None:
        # All are heavier than what should move: one of them, if that helps.
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
    """Looks at the loads when it is our turn, and says what should change.

    Parameters
    ----------
    rules
        The rules.
    """

    def __init__(self, rules: BalanceRules) -> None:
        self._rules = rules
        self._look_ms: int | None = None
        """When to look next; None while it is not our turn."""
        self._is_asking = False
        self._generation = 0
        """At which we counted:"""
        self._uneven: dict[str, int] = {}
        """By member in how many looks in a row it should have given something."""
        self._drifted = 0
        """In how many looks in a row the weights should have been renewed."""
        self._has_begun = False
        """Whether we are moving until it is even enough."""
        self._renewed_ms: int | None = None
        """When we renewed the weights alone, by the server's clock: not twice in a minute."""

    def advance(self, now_ms: int, *, is_our_turn: bool) -> list[Effect]:
        """Ask for the loads when a look is due."""
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
        """The loads could not be read: this look does not count."""
        self._is_asking = False

    def seen(self, event: LoadsRead, membership: Membership) -> Verdict | None:
        """Take what was measured; return a change once it was wanted often enough."""
        self._is_asking = False
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
            after = measured.with_moves(lasting, event.server_ms)
            return Verdict("balance", membership.generation, after)
        is_early = self._renewed_ms is not None and 0 <= event.server_ms - self._renewed_ms < MINUTE_MS
        if self._drifted >= self._rules.looks and not is_early:
            self._renewed_ms = event.server_ms
            return Verdict("weights", membership.generation, measured)
        return None


def _measured(loads: Mapping[str, Mapping[int, int]], membership: Membership) -> tuple[int, ...] | None:
    """Return all weights: what the owner measured, or what the document has of a partition.

    None while a member with partitions has measured nothing: we would think it idle.
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
    """Whether the document's weights are far from what was measured."""
    known = membership.weights.known(membership.partitions)
    away = sum(abs(now - before) for now, before in zip(weights, known, strict=True))
    return away * 100 > sum(weights) * DRIFT_PERCENT and away > IDLE * len(membership.active_ids)
