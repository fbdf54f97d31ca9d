"""What operations share: each performs one kind of effect at Redis, and returns the event that answers it.

``operations.OPERATIONS`` contains all of them.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from streamworker.core.events import Event
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend


@dataclass(frozen=True, slots=True)
class Access:
    """The backend, keys and settings that operations use."""

    backend: Backend
    keys: GroupKeys
    drain_deadline_ms: int
    parents_of: Callable[[int], Sequence[int]] = lambda _: ()
    """Returns the partitions that share keys with one in the generation before."""


Operation: TypeAlias = Callable[[Access, Any], Awaitable[Event]]
