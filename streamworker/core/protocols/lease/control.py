"""The two channels of the lease-grab race: kinds of message on the group's control stream."""

from typing import ClassVar

from streamworker.core.control import PartitionsMessage
from streamworker.core.words import name_of, runs


class LeaseMessage(PartitionsMessage):
    """A message of a node about leases; its generation is the server's time in ms."""

    def __str__(self) -> str:
        return f"{self.kind} {runs(self.partitions)} by {name_of(self.owner)}"


class LeaseChallenged(LeaseMessage):
    """A node challenged the leases of some partitions, and the race for them begins."""

    kind: ClassVar[str] = "challenged"
    is_news: ClassVar[bool] = True
    """A node's wait begins."""


class LeaseEnded(LeaseMessage):
    """A node stopped processing some partitions."""

    kind: ClassVar[str] = "ended"
