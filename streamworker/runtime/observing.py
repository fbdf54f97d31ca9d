"""What a process tells of its work, for those who measure it: metrics, traces.

An app has one observer or none, ``app.observer``: ``observe(app, ...)`` adds one. Workers and producers take
it when they are made, so it is set before a worker runs and before the first send. Senders need no worker: a
web application calls ``observe`` where it declares its app. Without an observer each of these facts costs one
test of an attribute, for a call, a commit or an append and never for a record.

An observer is called in the event loop that does the work, and the end of a call may be told from a thread.
It must neither block nor raise.
"""

import sys
from collections.abc import Callable
from typing import Any, Protocol

from streamworker.core.data.entries import EntryId
from streamworker.declaring.specs import ProcessorSpec, StreamSpec


class Observer:
    """Is told what happens, and does nothing; an observer overrides what it wants to know."""

    # -- once --------------------------------------------------------------------------------------

    def loop_runs(self, app: str, lag_ms: Callable[[], int]) -> None:
        """A worker begins; ``lag_ms``, from any thread, returns how late its event loop runs what is due."""

    def processor_runs(self, spec: ProcessorSpec, waiting: Callable[[], int]) -> None:
        """A worker runs a processor; ``waiting``, from any thread, counts messages in its outboxes."""

    def producer_made(self, spec: StreamSpec) -> None:
        """A program begins to send to a stream."""

    # -- a call of the function --------------------------------------------------------------------

    def called(self, spec: ProcessorSpec, seconds: float) -> None:
        """A call has ended, whether it succeeded or not.

        A function of one record is called for a few milliseconds in a row, and this is told once for the row.
        """

    def failed(self, spec: ProcessorSpec, error: BaseException) -> None:
        """A call has failed."""

    def retried(self, spec: ProcessorSpec) -> None:
        """A call that failed is made again now."""

    def timer_ran(self, spec: ProcessorSpec, timer: str, late_ms: int) -> None:
        """A timer's function has succeeded; it was called so long after its planned time."""

    # -- a commit ----------------------------------------------------------------------------------

    def committed(
        self, spec: ProcessorSpec, seconds: float, records: int, size: int, oldest: EntryId | None, dead: int
    ) -> None:
        """A commit is confirmed, so long after it was made.

        ``size`` is in bytes. ``oldest`` is its first record; None for that of a timer. ``dead`` counts its
        dead letters.
        """

    def refused(self, spec: ProcessorSpec) -> None:
        """A commit was refused, and its partition stops: another worker may have it."""

    # -- a send ------------------------------------------------------------------------------------

    def sent(self, spec: StreamSpec, seconds: float, records: int, waited: int) -> None:
        """Redis has confirmed some records, so long after the oldest of them was given to the producer.

        ``waited`` says how many of them found their partition full, and waited for room.
        """

    def repeated(self, spec: StreamSpec) -> None:
        """A record of the same id was sent or scheduled before: this one was not written."""


class Observable(Protocol):
    """An app, as far as observers know it."""

    observer: Observer | None


def observe(app: Observable, observer: Observer) -> None:
    """Let an observer know what the workers and producers of an app do, which are made from now on."""
    match app.observer:
        case None:
            app.observer = observer
        case _Several(observers=known):
            app.observer = app.observer if observer in known else _Several(*known, observer)
        case one:
            app.observer = one if observer is one else _Several(one, observer)


def meter_provider() -> Any:
    """Return the meter provider of OpenTelemetry that the program has configured; None if it has none."""
    if (api := sys.modules.get("opentelemetry.metrics")) is None:
        return None
    provider = api.get_meter_provider()
    # What the API has without an SDK counts nothing.
    return None if type(provider).__module__.startswith("opentelemetry.metrics") else provider


class _Several(Observer):
    """Tells several observers."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers
        for name in vars(Observer):
            if not name.startswith("_"):
                setattr(self, name, _teller([getattr(each, name) for each in observers]))


def _teller(methods: list[Callable[..., None]]) -> Callable[..., None]:
    def tell(*facts: Any) -> None:
        for method in methods:
            method(*facts)

    return tell
