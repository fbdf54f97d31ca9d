"""Marks partitions in their locks as stalled, or as running again."""

from collections.abc import Sequence
from dataclasses import dataclass

from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.scripts import MARK
from streamworker.redisio.wire.client import Backend

PREFIX = "no progress since "
"""Prefix of the reason of a stall."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The stall of one partition, or its end."""

    partition: int
    owner: str
    epoch: int
    state: str
    """``running`` or ``draining``."""
    since: str
    """The time of the last progress, for display; empty if the partition runs again."""
    waits_for: str

    @property
    def reason(self) -> str:
        """The reason in the lock."""
        return f"{PREFIX}{self.since}: waits for {self.waits_for}" if self.since else ""


async def show_stalls(backend: Backend, keys: GroupKeys, stalls: Sequence[Stall]) -> None:
    """Write stalls to the locks, in one round trip.

    A reason of another writer stays, since a halted partition or a full acked log says more. The lock
    also stays unchanged if another member holds it now.

    Raises
    ------
    BackendError
        Without an answer.
    """
    calls = [
        ((keys.lock(each.partition),), (each.owner, each.epoch, each.state, each.reason, PREFIX))
        for each in stalls
    ]
    await backend.run_many(MARK, calls)
