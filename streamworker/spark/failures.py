"""What went wrong in a query, in its own words instead of Spark's. Pure.

Spark wraps an error of the source in a page of Java and Python frames. The line that says
what happened, and what to do, is in there.
"""

import re
from dataclasses import dataclass

from streamworker.spark.logs import NO_STREAM

FINAL = frozenset(
    {"ConfigurationError", "JavaMissing", "DataLoss", "RecordError", "DecodeError", "InternalError"}
)
"""Errors of ours that starting again does not cure."""

TOO_BUSY = "Python worker failed to connect back"
"""Spark waits 10 s for a Python process to load its modules; on a busy machine that is not enough, and
there is no setting for it."""

_OURS = re.compile(r"streamworker\.errors\.(\w+): (.*)")
_PYTHON = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Warning)): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a query ended."""

    kind: str
    message: str
    final: bool
    """Whether starting again cannot help."""
    nothing_there_yet: bool = False
    """Whether the stream has not been declared in Redis; a worker or a producer does it."""
    too_busy: bool = False
    """Whether a Python process of Spark did not start in time, which passes with the load."""


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
