"""Errors of calls: what a function raised, as a value that is safe to keep, and in words."""

import asyncio
import math
import sysconfig
import traceback
from collections.abc import Callable
from typing import Any

import anyio

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


def as_error(raised: BaseException) -> Exception:
    """Return an error that is safe to raise anywhere: SystemExit would end the worker.

    A future cannot carry StopIteration, nor the generator of a middleware StopAsyncIteration. In code that
    nobody can cancel, in a thread or without an ``await``, this function suffices instead of :func:`failure`.
    """
    if isinstance(raised, Exception) and not isinstance(raised, (StopIteration, StopAsyncIteration)):
        return raised
    return RuntimeError(f"the function raised {in_words(raised)}").with_traceback(raised.__traceback__)


def describe_error(error: BaseException) -> str:
    """Return an error in one line, for reasons and dead letters, with a line of the user's code.

    That is the innermost line outside of installed packages, Python's library and streamworker.
    """
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
