"""Shows in the locks that partitions stand still, and that they go on."""

from collections.abc import Sequence
from dataclasses import dataclass

from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.scripts import MARK

PREFIX = "no progress since "
"""How such a reason begins."""


@dataclass(frozen=True, slots=True)
class Stall:
    """What is to be shown of one partition."""

    partition: int
    owner: str
    epoch: int
    state: str
    """``running`` or ``draining``."""
    since: str
    """A moment, for people; empty if the partition goes on."""
    waits_for: str

    @property
    def reason(self) -> str:
        """The reason in the lock."""
        return f"{PREFIX}{self.since}: waits for {self.waits_for}" if self.since else ""


async def show_stalls(backend: Backend, keys: GroupKeys, stalls: Sequence[Stall]) -> None:
    """Show stalls, in one round trip.

    A reason that somebody else has written stays: that a partition is halted, or that its acked log is
    full, says more. So does a lock that is another's by now.

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
