"""What the worker blocks of one app share: the server in memory, the clock, and what the app had before."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from streamworker.declaring.registry import DeclaringApp
from streamworker.errors import ConfigurationError
from streamworker.runtime.connecting import asked_for
from streamworker.settings import Settings
from streamworker.testing.clock import JumpingClock
from streamworker.testing.memory import MemoryServer, is_in_memory

TRIM_MS = 600_000
"""Minimum interval between trims of a server in memory: a test looks at what was sent a moment ago, and by
a virtual clock each trim of an idle partition costs as much real time as one of a busy one."""


class Home:
    """What the blocks of an app share, from the first that begins to the last that ends."""

    def __init__(self, app: DeclaringApp, url: str | None, clock: str | None) -> None:
        self.app = app
        self.blocks = 0
        self.clock: JumpingClock | None = None
        self._before = app.settings
        self._opened = app._opened  # noqa: SLF001 - no use to anybody else
        self._ends = ExitStack()
        self.url = url or app.settings.redis_url
        if url is not None:
            asked_for.add(url)
        if url is None and not is_in_memory(self.url):
            self.url = self._ends.enter_context(MemoryServer()).url
        if clock == "virtual":
            if not is_in_memory(self.url):
                raise ConfigurationError(
                    'clock="virtual" is for a server in memory.', remedy="Leave out url= or clock=."
                )
            self.clock = self._ends.enter_context(JumpingClock(app.settings.handler_threads))
        if is_in_memory(self.url) and app.registry.archived:
            from streamworker.archive.store import in_memory

            self._ends.enter_context(in_memory(self.url))
        if self.url != app.settings.redis_url:
            # A send may be under way in another task: what it uses stays open, beside what is opened now.
            app._opened = {}  # noqa: SLF001
        trims_ms = app.settings.trim_interval_ms
        if self.clock is not None or (is_in_memory(self.url) and trims_ms == Settings().trim_interval_ms):
            app.settings = replace(app.settings, trim_interval_ms=max(TRIM_MS, trims_ms))
        # Nobody else is about to join.
        app.settings = replace(app.settings, redis_url=self.url, founding_pause_ms=0)
        if is_in_memory(self.url):  # It has neither disk nor replicas, and what it confirms it has.
            app.settings = replace(app.settings, durability="memory")

    def close(self) -> None:
        """Give the app back what it had."""
        self.app.settings, self.app._opened = self._before, self._opened  # noqa: SLF001
        self._ends.close()


_homes: dict[DeclaringApp, Home] = {}
"""Of each app in whose blocks we are."""


@contextmanager
def home_of(app: DeclaringApp, url: str | None, clock: str | None) -> Iterator[Home]:
    """Let a block of an app share what the blocks around and beside it have, or make it.

    With ``clock=None`` it takes the clock of the block around it, or the real one.
    """
    outer = _homes.get(app)
    home = Home(app, url, clock) if outer is None or url not in (None, outer.url) else outer
    if clock is not None and (home.clock is not None) != (clock == "virtual"):
        raise ConfigurationError(
            f"The clock of the block around this one is not {clock}.", remedy="Give both the same clock=."
        )
    _homes[app] = home
    home.blocks += 1
    try:
        yield home
    finally:
        home.blocks -= 1
        if home.blocks == 0:
            home.close()
            if outer is None or outer is home:
                _homes.pop(app, None)
            else:
                _homes[app] = outer
