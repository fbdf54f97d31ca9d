"""Errors of calls: what a function raised or left behind, as a value that is safe to keep, and in words.

A function runs in the task of its partition. A cancel scope or task group of anyio that it enters and does
not leave is the innermost one of that task from then on, and a deadline in it cancels the partition later:
an ``async for`` over a generator with a timeout that ends by ``break``, or a session that is opened in a call
and kept. So a call is judged by what it leaves entered, too. Whatever awaits code of a user, in a task that
goes on afterwards, does so in ``with Left(function)``, and calls :func:`failure` outside of it.
"""

import asyncio
import math
import sysconfig
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import anyio
from anyio._backends._asyncio import _task_states

from streamworker.core.policies import CHOICES, leaves
from streamworker.core.text import in_words, printable
from streamworker.errors import ProcessingError
from streamworker.records.codecs import short
from streamworker.runtime.run.threads import name_of, settled

TRACE_MAX = 16_000
"""Characters of a traceback in a log line: 40 frames have half as many. Of a longer one the middle is left
out, which is the text of an error."""
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_PYTHON = (sysconfig.get_path("stdlib"), "<frozen ")


def failure(raised: BaseException) -> Exception:
    """Return the error with which a record failed, whatever its code raised.

    A cancel by streamworker comes from a cancel scope; it is raised again and is no error. Any other
    CancelledError comes from the function, or the function cancelled its own task. Treating it as
    streamworker's cancel would end the partition without an error. The task's cancel count is reset,
    because otherwise a later cancel by streamworker would look like a foreign one.
    """
    if isinstance(raised, asyncio.CancelledError):
        if anyio.current_effective_deadline() == -math.inf:
            raise raised
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
    return as_error(raised)


def was_cancelled(raised: BaseException) -> bool:
    """Return whether a call has ended by a cancel of its task; ask before :func:`failure`, which resets that.

    It returns False if the function itself has raised CancelledError. If it returns True, nothing tells who
    has cancelled the task: this call, or an ``asyncio.timeout`` or ``asyncio.TaskGroup`` that an earlier one
    has left entered. So the record is not charged at once, see ``modes.Mode.failed``.
    """
    task = asyncio.current_task()
    return isinstance(raised, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def cancelled_by(function: Callable[..., Any]) -> str:
    """Return who may have cancelled the task in which a function is called, if the worker has not."""
    return (
        f"{name_of(function)} has cancelled its own task, or it or middleware has left something entered "
        "that does so later, such as an asyncio.timeout or an asyncio.TaskGroup"
    )


def as_error(raised: BaseException) -> Exception:
    """Return an error that is safe to raise anywhere: SystemExit would end the worker.

    A future cannot carry StopIteration, nor the generator of a middleware StopAsyncIteration. In code that
    nobody can cancel, in a thread or without an ``await``, this function suffices instead of :func:`failure`.
    A group of policies of one kind, as a task group raises it for its tasks, is the first of them.
    """
    if isinstance(raised, ExceptionGroup):
        first, *others = leaves(raised)
        if isinstance(first, CHOICES) and all(type(other) is type(first) for other in others):
            return first
    if isinstance(raised, Exception) and not isinstance(raised, (StopIteration, StopAsyncIteration)):
        return raised
    return RuntimeError(f"the function raised {in_words(raised)}").with_traceback(raised.__traceback__)


def describe_error(error: BaseException) -> str:
    """Return an error in one line, for reasons and dead letters, with a line of the user's code.

    That is the innermost line outside of installed packages, Python's library and streamworker.
    Of a group it is the first error.
    """
    if isinstance(error, ExceptionGroup):
        first, *others = leaves(error)
        return describe_error(first) + (f", the first of {len(others) + 1} errors" if others else "")
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if not frames:
        return in_words(error)
    path, line = min(reversed(frames), key=lambda frame: _distance(frame[0]))
    return in_words(error) + printable(f" ({_parts(path)[-1]}:{line})")


def _distance(path: str) -> int:
    """Return 0 for a file of the user, 1 for one of an installed package, 2 for all others."""
    parts = _parts(path)
    if "streamworker" in parts:
        return 2
    if not _INSTALLED.isdisjoint(parts):
        return 1
    return 2 if path.startswith(_PYTHON) else 0


def _parts(path: str) -> list[str]:
    return path.replace("\\", "/").split("/")


def traceback_of(error: BaseException) -> str:
    """Return an error with the innermost 40 frames of its traceback: a recursion has a thousand."""
    try:
        text = "".join(traceback.format_exception(error, limit=-40))
        if len(text) > TRACE_MAX:
            text = f"{text[: TRACE_MAX // 2]}\n[...]\n{text[-TRACE_MAX // 2 :]}"
        return text.encode("utf-8", "backslashreplace").decode()
    except BaseException:  # noqa: BLE001 - its class is somebody's, as for ``in_words``
        return describe_error(error)


def untaken(function: Callable[..., Any], result: object) -> ProcessingError:
    """Return the error for a result that goes nowhere: its code has not run, or nobody asked for it."""
    return ProcessingError(
        f"{name_of(function)} returned {short(result)}, which nothing takes.",
        remedy="Annotate what it returns or set into=, so that it goes somewhere; return None or set "
        "forward=False, if it should not.",
    )


def returning_errors(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a function in a thread, as ``settled`` says; convert errors that a future cannot carry."""
    try:
        return settled(function(*args))
    except BaseException as raised:
        if (error := as_error(raised)) is raised:
            raise
        raise error from raised


class Left:
    """Watches what calls of a function leave entered in the current task, from here on."""

    __slots__ = ("_function", "before", "state")

    def __init__(self, function: Callable[..., Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._function = function
        self.state = _task_states[task]
        """What anyio knows of the task; its ``cancel_scope`` is the innermost one."""
        self.before = self.state.cancel_scope

    def judged(self, raised: BaseException | None = None) -> BaseException:
        """Leave what a call has left entered; return its error: what it raised, if it has left nothing.

        A call that has raised nothing has left something. A cancel of ours stays one.
        """
        if raised is not None and self.state.cancel_scope is self.before:
            return raised
        self.leave()
        if isinstance(raised, asyncio.CancelledError) and anyio.current_effective_deadline() == -math.inf:
            return raised
        error = ProcessingError(
            f"{name_of(self._function)} left a cancel scope or a task group of anyio entered.",
            remedy="Let each `with` end within the call, iterate over a generator that `break` may leave in "
            "contextlib.aclosing(), and open what is to be kept in a resource.",
        )
        error.__cause__ = raised
        return error

    def leave(self) -> None:
        """Cancel and leave what is entered since, the innermost first."""
        while (scope := self.state.cancel_scope) is not self.before and scope is not None:
            scope.cancel()
            scope.__exit__(None, None, None)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state.cancel_scope is not self.before and (error := self.judged(raised)) is not raised:
            raise error
