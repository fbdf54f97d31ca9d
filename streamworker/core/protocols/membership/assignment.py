"""Assigns partitions to members: a pure function of the members and the partitions.

Every member computes the same answer from the same document, so no member has to ask another. For that, the
only inputs are integers and the order in which members joined: no clock, no ``hash()``, no iteration order of
a set.

``range`` gives each member one contiguous run of partitions, in join order, as Kafka's range assignor and
runnel do. It needs no history, is balanced to one partition, and is easy to predict. Its price is that a
change near the front shifts every later run, so that a join can move about half of all partitions. A change
does not touch the partitions that keep their owner.

``sticky`` keeps as many partitions with their owners as it can: it is balanced to one partition, with the
fewest moves that any balanced assignment can have. It needs the previous assignment, which the membership
document holds, so every member still computes the same answer. Its price is that the answer depends on the
group's history, and that a member's partitions are not contiguous.

``weighted`` moves only the partitions that lost their owner, and a newcomer's share of the load. It uses the
weights and capacities in the document. ``balance`` corrects, slowly, what remains uneven or becomes so later.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

from streamworker.core.protocols.membership.weights import LEVEL, Scales, Weights

Owners = tuple[str | None, ...]
"""The owner's member id by partition number; None if the group has no member to own the partition."""

EVEN = Weights()
"""Equal weights for all partitions and equal capacities for all members."""


def range_assignment(
    members: Sequence[str],
    partitions: int,
    previous: Owners,  # noqa: ARG001
    weights: Weights = EVEN,  # noqa: ARG001
) -> Owners:
    """Give each member one contiguous run; the first ``partitions % n`` members get one more.

    >>> range_assignment(["a", "b", "c"], 8, ())
    ('a', 'a', 'a', 'b', 'b', 'b', 'c', 'c')
    >>> range_assignment(["a", "b", "c"], 2, ())
    ('a', 'b')
    >>> range_assignment([], 2, ())
    (None, None)
    """
    if not members:
        return (None,) * partitions
    each, extra = divmod(partitions, len(members))
    owners: list[str | None] = []
    for rank, member in enumerate(members):
        owners.extend([member] * (each + (rank < extra)))
    return tuple(owners)


def sticky_assignment(
    members: Sequence[str],
    partitions: int,
    previous: Owners,
    weights: Weights = EVEN,  # noqa: ARG001
) -> Owners:
    """Balance to one partition with the fewest moves; without a history, assign as ``range`` does.

    A partition is free if its previous owner is not a member or is unknown.

    >>> sticky_assignment(["a", "b", "c"], 8, ("a", "a", "a", "a", "b", "b", "b", "b"))
    ('a', 'a', 'a', 'c', 'b', 'b', 'b', 'c')
    >>> sticky_assignment(["a", "b"], 4, ("a", "gone", "gone", "b"))
    ('a', 'a', 'b', 'b')
    >>> sticky_assignment([], 2, ("a", "b"))
    (None, None)
    """
    # Why this moves the minimum. Write P = q * n + r with r < n. Sizes that differ by one at most and add
    # up to P are r times q + 1 and n - r times q; the only choice is which r members get the larger size.
    # A member that had k partitions keeps at most min(k, its size), so that all members together keep at
    # most
    #
    #     sum of min(k, q)  +  the number of larger sizes given to members with k > q.
    #
    # The second term is at most min(r, number of members with k > q), and it reaches that if members with
    # k > q are served first. Each member then does keep min(k, its size), since it gives up only the
    # partitions above its size. All others go to members below their size, which have room for exactly
    # that many. A partition that is not kept has moved: with the most kept, the fewest move.
    if not members:
        return (None,) * partitions
    each, extra = divmod(partitions, len(members))
    had: dict[str | None, list[int]] = {member: [] for member in members}
    for partition, owner in enumerate(previous[:partitions]):
        if owner in had:
            had[owner].append(partition)
    # A stable sort: among equals the earlier member gets the larger size.
    by_need = sorted(members, key=lambda member: len(had[member]) <= each)
    size = {member: each + (rank < extra) for rank, member in enumerate(by_need)}
    owners: list[str | None] = [None] * partitions
    for member in members:
        for partition in had[member][: size[member]]:
            owners[partition] = member
    free = (partition for partition, owner in enumerate(tuple(owners)) if owner is None)
    for member in members:
        for _ in range(size[member] - len(had[member])):
            owners[next(free)] = member
    return tuple(owners)


def weighted_assignment(
    members: Sequence[str], partitions: int, previous: Owners, weights: Weights = EVEN
) -> Owners:
    """Give the free partitions to the lowest levels, and a newcomer its share; move nothing else.

    A newcomer is a member without partitions: it just joined, or there were too few partitions until now. If
    weights and capacities are equal and the other members are balanced, the result is balanced to one
    partition.

    >>> weighted_assignment(["a", "b"], 4, ("a", "a", "a", "a"))
    ('b', 'b', 'a', 'a')
    >>> weighted_assignment(["a", "b"], 4, ("a", "a", "a", "a"), Weights((900, 100, 100, 100)))
    ('a', 'b', 'b', 'b')
    >>> weighted_assignment(["a", "b"], 6, ("a",) * 6, Weights(capacities={"b": 2}))
    ('b', 'b', 'b', 'b', 'a', 'a')
    >>> weighted_assignment(["a", "b"], 4, ("a", "gone", "gone", "b"))
    ('a', 'a', 'b', 'b')
    """
    if not members:
        return (None,) * partitions
    known = previous[:partitions] + (None,) * (partitions - len(previous))
    scales = Scales(members, known, weights)
    _give_free(scales)
    in_vain = set[int]()
    for member in members:
        capacity = scales.capacity[member]
        if scales.has(member) == 0 and capacity not in in_vain:
            _give_share(scales, member)
            # If no partition could move to this member, none can move to the next one of the same
            # capacity until something moves.
            in_vain = {*in_vain, capacity} if scales.has(member) == 0 else set()
    return scales.owners()


def _give_free(scales: Scales) -> None:
    """Give each free partition, heaviest first, to the member whose level is then the lowest.

    The first of several equal members gets the partition.
    """
    # Among members of one capacity that is the member with the least load, whatever the partition weighs.
    # So only one member per capacity has to be compared, which keeps a thousand members and ten thousand
    # partitions fast enough.
    queues: dict[int, list[tuple[int, int, str]]] = {}
    for rank, member in enumerate(scales.members):
        queues.setdefault(scales.capacity[member], []).append((scales.load[member], rank, member))
    for queue in queues.values():
        heapify(queue)

    for partition in sorted(scales.free, key=lambda p: (-scales.weight[p], p)):
        weight = scales.weight[partition]
        queue = min(queues.values(), key=lambda each: (scales.level(each[0][2], weight), each[0][1]))
        _, rank, taker = queue[0]
        scales.move(partition, None, taker)
        heapreplace(queue, (scales.load[taker], rank, taker))


def _give_share(scales: Scales, newcomer: str) -> None:
    """Fill a newcomer up to its share, from the members with the highest levels."""
    share = scales.mean(scales.members) * scales.capacity[newcomer] // LEVEL
    ranks = {member: rank for rank, member in enumerate(scales.members) if member != newcomer}
    highest = [(-scales.level(member), rank, member) for member, rank in ranks.items()]
    heapify(highest)
    while highest:
        level, rank, giver = heappop(highest)
        partition = scales.heaviest(giver, share - scales.load[newcomer])
        if partition is None and scales.has(newcomer) == 0:
            partition = scales.lightest(giver)  # a little too much is better than nothing
        # The move must help: the newcomer's level must stay below the giver's level before the move.
        if partition is None or scales.level(newcomer, scales.weight[partition]) >= -level:
            continue
        scales.move(partition, giver, newcomer)
        heappush(highest, (-scales.level(giver), rank, giver))


STRATEGIES = {
    "range": range_assignment,
    "sticky": sticky_assignment,
    "weighted": weighted_assignment,
}
"""Each returns an owner for each partition, given the members in join order and the previous owners."""


def moves(before: Owners, after: Owners) -> tuple[int, ...]:
    """Return the partitions that ``after`` gives to a member that did not own them ``before``.

    >>> moves(("a", "a", "a", "a"), ("a", "a", "b", "b"))
    (2, 3)
    >>> moves((), ("a", "a"))
    (0, 1)
    >>> moves(("a", "a"), (None, None))
    ()
    """
    old = before + (None,) * (len(after) - len(before))
    return tuple(p for p, owner in enumerate(after) if owner is not None and owner != old[p])
