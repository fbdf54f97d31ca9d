"""What a new partition takes over of a group's keyed state, when its stream has grown.

A function that keeps state by key uses text as keys of ``ctx.state``. A field that is the key of a record
goes where that key goes. Others, such as a sum over a partition, belong to no key. They go whole to one
partition that follows, the *heir* of theirs, so that what is added over all partitions stays exact.

Nothing says of a field what it is. So it counts as a key if its text leads to the partition that has it. The
name of a sum leads to some partition, too. But each partition has such a field, so a field is no key if the
other parent of the partition that it leads to has it as well.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum

from streamworker.core.data.placement import Placement

LOCK_FIELDS = ("from", "done", "moved")
"""Fields of a lock: the parents of a partition that is not open yet, whether the group is done with one that
others follow, and whether what it had is removed."""


def heir_of(placement: Placement, partition: int) -> int:
    """Return the partition that takes over what belongs to no key: each has one of its own.

    >>> heir_of(Placement(8, 12), 0), heir_of(Placement(8, 12), 1)
    (8, 9)
    """
    return placement.children_of(partition)[0]


def beside(placement: Placement, child: int) -> AbstractSet[int]:
    """Return the partitions whose state decides what a new one takes over: its parents and their neighbours.

    >>> sorted(beside(Placement(8, 12), 9)), sorted(beside(Placement(8, 16), 9))
    ([0, 1], [0])
    """
    siblings = {each for parent in placement.parents_of(child) for each in placement.children_of(parent)}
    return {parent for each in siblings for parent in placement.parents_of(each)}


def inherited(
    placement: Placement, child: int, states: Mapping[int, Mapping[bytes, bytes]]
) -> dict[bytes, bytes]:
    """Return the fields of the keyed state that a new partition takes over.

    ``states`` has the final state of each partition of :func:`beside`. All partitions of the new generation
    together take over each field of each old one once, and none of them two of the same name.

    >>> states = {0: {b"bob": b"1", b"sum": b"1"}, 1: {b"sum": b"5"}}
    >>> [inherited(Placement(2, 3), each, states) for each in (2, 3, 4)]
    [{b'sum': b'1'}, {b'bob': b'1'}, {b'sum': b'5'}]
    """
    found: dict[bytes, bytes] = {}
    for parent in placement.parents_of(child):
        for field, value in states[parent].items():
            at = _child_of(placement, parent, field)
            if at is not None and any(
                field in states[other] for other in placement.parents_of(at) if other != parent
            ):
                at = None
            if child == (heir_of(placement, parent) if at is None else at):
                found[field] = value
    return found


def _child_of(placement: Placement, parent: int, field: bytes) -> int | None:
    """Return the partition that a field leads to; None if it does not lead to the one that has it."""
    path = placement.path_of(field)
    generation = path.index(parent) if parent in path else None
    return None if generation is None else path[generation + 1]


def counted(placement: Placement, waits: AbstractSet[int], done: AbstractSet[int]) -> dict[int, bool]:
    """Return by partition whether what it has counts: copies do when they are complete.

    While some that follow are open and others wait, what the open ones have copied counts twice.

    >>> counted(Placement(2, 3), waits={3}, done={0, 1})
    {0: True, 1: True, 2: True, 3: False, 4: True}
    """
    return {
        p: p not in waits and (p not in done or not waits.isdisjoint(placement.children_of(p)))
        for p in placement.all
    }


class Where(Enum):
    """Where the values are of which a partition was asked."""

    HERE = "here"
    BEFORE = "before"
    """At the partitions before it: it has not taken them over yet."""
    AFTER = "after"
    """At those that follow it."""


def where_now(lock: Sequence[bytes | None], *, is_parent: bool) -> Where:
    """Return where the values of a partition are, by ``LOCK_FIELDS`` of its lock.

    ``is_parent`` says that one that follows it is not open.

    >>> where_now([None, b"1", None], is_parent=True), where_now([None, b"1", None], is_parent=False)
    (<Where.HERE: 'here'>, <Where.AFTER: 'after'>)
    """
    parents, done, moved = lock
    if moved if is_parent else done:
        return Where.AFTER
    return Where.BEFORE if parents else Where.HERE
