"""What a process tells of its work, for those who measure it: metrics, traces.

An app has one observer or none, ``app.observer``: ``observe(app, ...)`` adds one. Workers and producers take
it when they are made, so it is set before a worker runs and before the first send. Senders need no worker: a
web application calls ``observe`` where it declares its app. Without an observer each of these facts costs one
test of an attribute, for a call, a commit or an append and never for a record.

An observer is called in the event loop that does the work, and the end of a call may be told from a thread.
It must neither block nor raise.
"""

from collections.abc import Callable
from typing import Any, Protocol

from streamworker.core.data.entries import EntryId
from streamworker.declaring.specs import ProcessorSpec, StreamSpec


class Observer:
    """Is told what happens, and does nothing; an observer overrides what it wants to know."""

    # -- once for a worker -------------------------------------------------------------------------

    def loop_runs(self, lag_ms: Callable[[], int]) -> None:
        """A worker begins; ``lag_ms``, from any thread, returns how late its event loop runs what is due."""

    def outbox_opens(self, spec: ProcessorSpec, depth: Callable[[], int]) -> None:
        """A worker runs a processor that sends; ``depth``, from any thread, counts its waiting messages."""

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
    app.observer = observer if app.observer is None else _Both(app.observer, observer)


class _Both(Observer):
    """Tells two observers."""

    def __init__(self, *observers: Observer) -> None:
        for name in vars(Observer):
            if not name.startswith("_"):
                setattr(self, name, _teller([getattr(each, name) for each in observers]))


def _teller(methods: list[Callable[..., None]]) -> Callable[..., None]:
    def tell(*facts: Any) -> None:
        for method in methods:
            method(*facts)

    return tell
