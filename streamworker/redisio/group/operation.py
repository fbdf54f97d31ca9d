"""Operations: each performs one kind of effect at Redis, and returns the event that answers it.

Each protocol has a module of operations; ``operations.OPERATIONS`` contains all of them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from streamworker.core.events import Event
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend


@dataclass(frozen=True, slots=True)
class Access:
    """The backend, keys and settings that operations use."""

    backend: Backend
    keys: GroupKeys
    drain_deadline_ms: int


@dataclass(frozen=True, slots=True)
class Operation:
    """Performs one kind of effect; ``failed`` makes the event for its core if there is no answer."""

    do: Callable[[Access, Any], Awaitable[Event]]
    failed: Callable[[Any], Event]
