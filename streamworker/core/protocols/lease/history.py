"""Finds the races that moved something, in the messages of a group's control stream."""

from collections.abc import Sequence

from streamworker.core.control import ControlMessage, PartitionsAcquired
from streamworker.core.protocols.lease.events import LeaseChallenged
from streamworker.core.snapshot import Rebalance
from streamworker.core.words import name_of

TOGETHER_MS = 1_000
"""Races that began within this time and that one worker won are shown as one rebalance."""


def races(messages: Sequence[tuple[int, ControlMessage]]) -> list[Rebalance]:
    """Return the races that a challenger won as rebalances: from the challenge to the acquisition.

    No message announces them: a challenge does not say who will win, and in most races the owner keeps the
    partition and nothing moves.
    """
    found: list[Rebalance] = []
    challenged_ms: dict[int, int] = {}
    for then_ms, message in messages:
        if isinstance(message, LeaseChallenged):
            challenged_ms |= dict.fromkeys(message.partitions, then_ms)
        if not isinstance(message, PartitionsAcquired):
            continue
        won = [p for p in message.partitions if p in challenged_ms]
        if not won:
            continue
        at_ms = min(challenged_ms.pop(p) for p in won)
        name = name_of(message.owner)
        moved = tuple(won)
        last = found[-1] if found else None
        if last is not None and last.member == name and at_ms - last.at_ms < TOGETHER_MS:
            found.pop()
            at_ms, moved = last.at_ms, (*last.moved, *won)
        found.append(Rebalance(message.generation, "race", name, at_ms, moved, then_ms - at_ms))
    return found
