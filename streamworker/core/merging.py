"""Several calls as one: what some events at once ask of the locks goes out together.

A core answers each event by itself. When a hundred partitions drain in one moment it says a hundred
times "release this lock", and each answer would be told to the group by a message of its own, which
wakes every worker. One call for all of them has one answer, and one message.
"""

from collections.abc import Iterable

from streamworker.core.events import AcquireLocks, Effect, ReleaseLocks


def merged(effects: Iterable[Effect]) -> list[Effect]:
    """Return the effects with those calls about locks made one that ask for the same.

    Examples
    --------
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
                before = calls.get(key)
                if isinstance(before, ReleaseLocks):
                    effect = ReleaseLocks(owner, {**before.epochs, **effect.epochs})
            case AcquireLocks(_, owner, generation, live):
                key = (owner, generation, live)
                before = calls.get(key)
                if isinstance(before, AcquireLocks):
                    effect = AcquireLocks((*before.partitions, *effect.partitions), owner, generation, live)
        calls[key] = effect
    return list(calls.values())
