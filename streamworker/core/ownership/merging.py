"""Merges the lock calls of several events that happen at once.

A core handles each event by itself. When a hundred partitions drain in one moment, it returns a hundred
effects that each release one lock, and each answer would lead to a message of its own to the group, which
wakes every worker. One call for all of them has one answer and leads to one message.
"""

from collections.abc import Iterable

from streamworker.core.events import AcquireLocks, Effect, ReleaseLocks


def merged(effects: Iterable[Effect]) -> list[Effect]:
    """Return the effects, with lock calls that differ only in their partitions merged into one.

    >>> merged([ReleaseLocks("a", {1: 7}), ReleaseLocks("a", {2: 9})])
    [ReleaseLocks(owner='a', epochs={1: 7, 2: 9})]
    >>> ask = [AcquireLocks((p,), "a", 5, ("a", "b")) for p in (1, 2)]
    >>> merged(ask)
    [AcquireLocks(partitions=(1, 2), owner='a', generation=5, live=('a', 'b'))]
    """
    calls: dict[object, Effect] = {}
    for number, effect in enumerate(effects):
        key: object = number
        match effect:
            case ReleaseLocks(owner):
                key = owner
                if isinstance(before := calls.get(key), ReleaseLocks):
                    effect = ReleaseLocks(owner, {**before.epochs, **effect.epochs})
            case AcquireLocks(_, owner, generation, live):
                key = (owner, generation, live)
                if isinstance(before := calls.get(key), AcquireLocks):
                    effect = AcquireLocks((*before.partitions, *effect.partitions), owner, generation, live)
        calls[key] = effect
    return list(calls.values())
