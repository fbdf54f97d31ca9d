"""Who should own what: a pure function of the members and the partitions.

Every member computes the same answer from the same document, so nobody has to be asked. For
that, only integers and the order of the members' joining go in: no clock, no ``hash()``, no
order of a set.

``range`` gives each member one contiguous run of partitions, in join order, as Kafka's range
assignor and runnel do. It needs no history, is balanced to one partition, and is easy to
predict; its price is that a change near the front shifts every later run, so that a join can
move about half of all partitions. Partitions that keep their owner are not touched by that.
"""

from collections.abc import Callable, Sequence

Owners = tuple[str | None, ...]
"""Partition number to member id; None where the group has nobody to own it."""

Strategy = Callable[[Sequence[str], int, Owners], Owners]


def range_assignment(members: Sequence[str], partitions: int, previous: Owners) -> Owners:  # noqa: ARG001
    """Give each member one contiguous run; the first ``partitions % n`` members get one more.

    Examples
    --------
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


STRATEGIES: dict[str, Strategy] = {"range": range_assignment}


def moves(before: Owners, after: Owners) -> tuple[int, ...]:
    """Return the partitions that ``after`` gives to somebody who did not have them ``before``.

    Examples
    --------
    >>> moves(("a", "a", "a", "a"), ("a", "a", "b", "b"))
    (2, 3)
    >>> moves((), ("a", "a"))
    (0, 1)
    >>> moves(("a", "a"), (None, None))
    ()
    """
    old = before + (None,) * (len(after) - len(before))
    return tuple(p for p, owner in enumerate(after) if owner is not None and owner != old[p])
