"""The cause of a failed query, from the text of Spark's exception. Pure.

Spark wraps an error of the source in a page of Java and Python frames. This module finds the line with
the error and its remedy.
"""

import re
from dataclasses import dataclass

from streamworker.spark.source.logs import NO_STREAM

FINAL = frozenset(
    {"ConfigurationError", "JavaMissing", "DataLoss", "RecordError", "DecodeError", "InternalError"}
)
"""Errors of streamworker that a restart of the query does not cure."""

TOO_BUSY = "Python worker failed to connect back"
"""Part of Spark's message when a Python process has not loaded its modules within 10 s. No setting
changes this timeout, which a busy machine exceeds."""

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
    too_busy: bool = False
    """Whether a Python process of Spark did not start in time because of the machine's load."""


def read_failure(text: str) -> Failure:
    """Find the cause in the text of Spark's exception."""
    if TOO_BUSY in text:
        message = f"{TOO_BUSY} within 10 s: the machine is too busy, or Python does not start there."
        return Failure("Spark", message, final=False, too_busy=True)
    ours = _OURS.findall(text)
    if ours:
        kind, message = ours[-1]
        return Failure(kind, message.strip(), kind in FINAL, message.startswith(NO_STREAM))
    python = _PYTHON.findall(text)
    if python:
        kind, message = python[-1]
        return Failure(kind, f"{kind}: {message.strip()}", final=False)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return Failure("Spark", first[:500], final=False)
