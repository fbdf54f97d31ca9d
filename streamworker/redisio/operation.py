"""What an operation is: how one kind of effect is done at Redis, and what answers for it.

Each protocol has a module of them (``operations``, ``operations_claim``, ``operations_lease``);
``operations.OPERATIONS`` is all of them together.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from streamworker.core.events import Event
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys


@dataclass(frozen=True, slots=True)
class Access:
    """What operations work with."""

    backend: Backend
    keys: GroupKeys
    drain_deadline_ms: int


@dataclass(frozen=True, slots=True)
class Operation:
    """How one kind of effect is done, and what its core is told when there is no answer."""

    do: Callable[[Access, Any], Awaitable[Event]]
    failed: Callable[[Any], Event]
