"""What ``into_stream`` must know of the pipeline in whose function it is called."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from streamworker.errors import ConfigurationError


@dataclass
class Running:
    """The micro-batch that a pipeline hands to a function of the program."""

    name: str
    checkpoint: str
    _used: set[str] = field(default_factory=set)

    def use(self, sink: str) -> None:
        """Refuse a sink that the function uses twice: the second call would send nothing, and say nothing."""
        if sink in self._used:
            raise ConfigurationError(
                f"Pipeline {self.name!r} sends to {sink} twice in one micro-batch.",
                remedy="Give each a name, into_stream(..., name=...); or send the union of the rows once.",
            )
        self._used.add(sink)


_running: ContextVar[Running | None] = ContextVar("running", default=None)


@contextmanager
def running(name: str, checkpoint: str) -> Iterator[None]:
    """Let a pipeline hand a micro-batch to a function of the program within a block."""
    token = _running.set(Running(name, checkpoint))
    try:
        yield
    finally:
        _running.reset(token)


def now_running() -> Running | None:
    """Return the pipeline whose function runs; None outside of one."""
    return _running.get()
