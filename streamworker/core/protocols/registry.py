"""The rebalance protocols behind one interface, and the table of them.

A protocol is a pure object: ``handle(event, now_ms)`` returns effects, and ``next_deadline_ms()`` says when
time itself is the next event. The runtime and the simulator run every protocol through this interface.

A new protocol is a folder with a core, its events, control messages and settings, and a line in
``PROTOCOLS``. If it has effects of its own, their operations get a line in ``redisio.group.operations`` and,
for the simulator, in ``tests/simulator/server/extensions.py``. Nothing else names a protocol but the default.

In every protocol, ownership is a lock with an owner and an epoch, and both fence commits. A protocol decides
which worker handles which partition; it never decides whether a commit is valid.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from streamworker.core.control import (
    ControlMessage,
    GroupChanged,
    PartitionsAcquired,
    PartitionsReleased,
    RequestMade,
    StreamGrown,
)
from streamworker.core.events import Effect, Event
from streamworker.core.protocols.claim.protocol import ClaimCore
from streamworker.core.protocols.claim.settings import Claim
from streamworker.core.protocols.lease.events import LeaseChallenged, LeaseEnded
from streamworker.core.protocols.lease.history import races
from streamworker.core.protocols.lease.protocol import LeaseCore
from streamworker.core.protocols.lease.settings import Lease
from streamworker.core.protocols.membership.joining import JoinWanted
from streamworker.core.protocols.membership.settings import ByDocument
from streamworker.core.protocols.membership.worker import WorkerCore
from streamworker.core.protocols.settings import Coordination
from streamworker.core.protocols.setup import Setup
from streamworker.core.snapshot import Rebalance
from streamworker.errors import ConfigurationError


class Coordinator(Protocol):
    """The interface of a worker's part in one group."""

    @property
    def held(self) -> Sequence[int]:
        """Return the partitions whose lock this worker holds and does not give back."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle one event; return the effects to execute, in this order."""

    def next_deadline_ms(self) -> int | None:
        """Return when to deliver ``DeadlinePassed`` if no other event comes before."""


Messages = Sequence[tuple[int, ControlMessage]]
"""Server time in ms of each message, and the message; oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolEntry:
    """What others must know of a protocol."""

    settings: type[Coordination]
    make: Callable[[Setup], Coordinator]
    """Makes a worker's core."""
    messages: tuple[type[ControlMessage], ...] = ()
    """The control messages that only this protocol has."""
    history: Callable[[Messages], list[Rebalance]] = lambda _: []
    """Finds the rebalances that no ``GroupChanged`` announces."""
    has_document: bool = False
    """Whether a document lists the members and assigns the partitions; heartbeats then carry load."""


DEFAULT = ByDocument()
PROTOCOLS: Mapping[str, ProtocolEntry] = {
    entry.settings.name: entry
    for entry in (
        ProtocolEntry(settings=ByDocument, make=WorkerCore, messages=(JoinWanted,), has_document=True),
        ProtocolEntry(settings=Claim, make=ClaimCore),
        ProtocolEntry(settings=Lease, make=LeaseCore, messages=(LeaseChallenged, LeaseEnded), history=races),
    )
}

_SHARED: tuple[type[ControlMessage], ...] = (
    GroupChanged,
    PartitionsReleased,
    PartitionsAcquired,
    RequestMade,
    StreamGrown,
)
MESSAGES: dict[str, type[ControlMessage]] = {
    message.kind: message
    for messages in (_SHARED, *(entry.messages for entry in PROTOCOLS.values()))
    for message in messages
}
"""Each kind of control message by the field ``kind`` of its entries."""


def entry_of(name: object) -> ProtocolEntry:
    """Return a protocol by its name; raise ConfigurationError if there is none."""
    if not isinstance(name, str) or name not in PROTOCOLS:
        raise ConfigurationError(
            f"There is no coordination {name!r}.", remedy=f"Use one of: {', '.join(sorted(PROTOCOLS))}."
        )
    return PROTOCOLS[name]


def from_fields(fields: Mapping[str, str]) -> ControlMessage | None:
    """Read a control stream entry; return None if its kind or its fields are unknown.

    >>> from_fields(PartitionsReleased((3, 4), "w1.a", 7).fields())
    PartitionsReleased(partitions=(3, 4), owner='w1.a', generation=7)
    >>> from_fields({"kind": "of-a-later-release"}) is None
    True
    """
    try:
        return MESSAGES[fields["kind"]].read(fields)
    except (KeyError, ValueError):
        return None
