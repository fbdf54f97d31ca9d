"""The cause of a failed query, from the text of Spark's exception.

Spark wraps an error of the source in a page of Java and Python frames. This module finds the line with
the error and its remedy.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from streamworker.spark.source.logs import NO_STREAM
from streamworker.spark.source.postgres import AWAY

FINAL = frozenset(
    {"ConfigurationError", "JavaMissing", "DataLoss", "RecordError", "DecodeError", "InternalError"}
)
"""Errors of streamworker that a restart of the query does not cure."""

TOO_BUSY = "Python worker failed to connect back"
"""Part of Spark's message when a Python process has not loaded its modules within 10 s. No setting
changes this timeout, which a busy machine exceeds."""

LACKING = frozenset({"ModuleNotFoundError", "ImportError"})
"""Errors of Python that a restart of the query does not cure either."""

CRASHED = "exited unexpectedly"
"""Part of Spark's message when a Python process ended without an answer. Only the JVM's log has its error."""

LOG_TAIL_BYTES = 64 * 1024

_OURS = re.compile(r"streamworker\.errors\.(\w+): (.*)")
_PYTHON = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Warning)): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a query ended."""

    kind: str
    message: str
    final: bool
    """Whether a restart cannot help."""
    nothing_there_yet: bool = False
    """Whether no worker or producer has declared the stream in Redis yet."""
    may_last: bool = False
    """Whether the cause may last for minutes: a machine that is too busy, or a Spark server that is away."""


def read_failure(text: str, log_path: Path | None = None) -> Failure:
    """Find the cause in the text of Spark's exception, or in the JVM's log if only that has it."""
    if CRASHED in text and log_path is not None and log_path.exists():
        with log_path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            tail = file.read().decode("utf-8", "replace")
        if found := _PYTHON.findall(tail):
            return _of_python(*found[-1])
    if TOO_BUSY in text:
        message = f"{TOO_BUSY} within 10 s: the machine is too busy, or Python does not start there."
        return Failure("Spark", message, final=False, may_last=True)
    if ours := _OURS.findall(text):
        kind, message = ours[-1]
        waits, lasts = message.startswith(NO_STREAM), message.startswith(AWAY)
        return Failure(kind, message.strip(), kind in FINAL, nothing_there_yet=waits, may_last=lasts)
    if python := _PYTHON.findall(text):
        return _of_python(*python[-1])
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return Failure("Spark", first[:500], final=False)


def _of_python(kind: str, message: str) -> Failure:
    lacks = kind in LACKING
    remedy = ". Spark's Python processes need it: install it where they run." if lacks else ""
    return Failure(kind, f"{kind}: {message.strip()}{remedy}", final=lacks)
