"""One commit on its way from a partition to Redis."""

from collections.abc import Callable
from dataclasses import dataclass

from streamworker.core.pauses import Pauses
from streamworker.redisio.data.commit import CommitReply, CommitRequest

OnReply = Callable[[CommitReply], None]
OnTrouble = Callable[[str], None]


@dataclass(slots=True, eq=False)
class Ticket:
    """One queued commit."""

    request: CommitRequest
    on_reply: OnReply
    on_trouble: OnTrouble
    withdrawn: bool = False
    tries: int = 0
    pauses: Pauses | None = None

    def withdraw(self) -> None:
        """Cancel the callback. The commit may already be in flight, so its outcome is unknown."""
        self.withdrawn = True

    @property
    def size(self) -> int:
        """Bytes that the commit adds to the acked log."""
        return 0 if self.request.batch is None else len(self.request.batch.data)
