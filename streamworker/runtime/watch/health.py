"""What probes are told about a worker process, whichever thread asks.

A check returns what is wrong, in a few words, or an empty text. It only reads attributes, so it answers while
the event loop is blocked and while Redis is away.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.watch.keeper import Keeper
from streamworker.runtime.watch.watchdog import Watchdog


class Joining(Protocol):
    """A group, as far as probes know it."""

    keys: GroupKeys
    joined: bool


@dataclass(eq=False)
class Health:
    """The state of one worker process; the worker sets what it has."""

    groups: Sequence[Joining] = ()
    watched: tuple[Keeper, Watchdog] | None = None
    stopping: bool = False
    waits: str = ""
    """Why the worker cannot start yet, such as ``Redis is away``: another process could not, either."""
    _has_joined: bool = field(default=False, init=False)

    def live(self) -> str:
        """Check the threads that only a new process can replace: the event loop and the heartbeats.

        An outage of Redis is none of them, and neither is a call that takes long without blocking the loop.
        """
        if self.watched is None:
            return ""
        keeper, watchdog = self.watched
        for what, silent_ms in (("event loop", watchdog.blocked_ms), ("heartbeat thread", keeper.silent_ms)):
            if silent_ms >= watchdog.after_ms:
                return f"the {what} has not run for {silent_ms} ms"
        return ""

    def ready(self) -> str:
        """Check that the worker takes part in each of its groups, and stays."""
        if self.stopping:
            return "the worker drains and leaves"
        if not self.groups:
            return "the worker starts" + (f", and {self.waits}" if self.waits else "")
        missing = [group.keys.group for group in self.groups if not group.joined]
        return f"the worker has not joined: {', '.join(missing)}" if missing else ""

    def started(self) -> str:
        """Check that the worker was ready once, or waits for what no other process could have."""
        if self._has_joined or self.waits:
            return ""
        problem = self.ready()
        self._has_joined = not problem
        return problem
