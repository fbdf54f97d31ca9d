"""The cause of a failed query, from the text of Spark's exception.

Spark wraps an error of the source in a page of Java and Python frames. This module finds the line with
the error and its remedy. What Spark itself calls final is final, and gets our remedy where Spark's leads
astray: its text about state of other columns, for one, offers to write over that state without a look.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from streamworker.core.words import counted
from streamworker.spark.sinks.postgres import AWAY
from streamworker.spark.source.logs import NO_STREAM

FINAL = frozenset(
    {
        "ArchiveConflict",
        "ConfigurationError",
        "DataLoss",
        "DecodeError",
        "InternalError",
        "JavaMissing",
        "RecordError",
    }
)
"""Errors of streamworker that a restart of the query does not cure."""

TOO_BUSY = "Python worker failed to connect back"
"""Part of Spark's message when a Python process has not loaded its modules within 10 s. No setting
changes this timeout, which a busy machine exceeds."""

OUT_OF_MEMORY = "Redis is out of memory"
"""In the remedy of a refusal by a server that is full."""

LACKING = frozenset({"ModuleNotFoundError", "ImportError"})
"""Errors of Python that a restart of the query does not cure either."""

CRASHED = "exited unexpectedly"
"""Part of Spark's message when a Python process ended without an answer. Only the JVM's log has its error."""

LOG_TAIL_BYTES = 64 * 1024

SPARK_REFUSES = re.compile(r"SQLSTATE: (?:0A|22|42)")
"""Classes of SQLSTATE by which Spark says: not supported, a value does not fit, the query is wrong."""
PLAN = "=== Streaming Query ==="
"""What Spark appends to a message: the query's plan, which may hold any text."""
NEEDS_ROCKSDB = "STORE_BACKEND_NOT_SUPPORTED_FOR_TWS"
ROCKSDB = (
    "Run it with --conf spark.sql.streaming.stateStore.providerClass="
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
)
_SOURCES = re.compile(r"\[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\]")
_STATE = re.compile(
    r"STATE_STORE_\w+_SCHEMA_NOT_COMPATIBLE.*?Existing \w+_schema=(.*?) and new \w+_schema=(.*?)\.$",
    re.DOTALL | re.MULTILINE,
)
_FIELD = re.compile(r"StructField\(([^,]+),")
_OURS = re.compile(r"streamworker\.(?:\w+\.)+(\w+): (.*)")
_PYTHON = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Warning)): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a query ended."""

    kind: str
    message: str
    final: bool
    """Whether a restart cannot help."""
    target_full: bool = False
    """Whether a stream that it sends to, or its server, has no room."""
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
        waits = message.startswith(NO_STREAM)
        full = kind == "StreamFull" or (kind == "BackendRefused" and OUT_OF_MEMORY in message)
        lasts = full or kind == "NotDurable" or message.startswith(AWAY) or kind == "ArchiveUnavailable"
        return Failure(kind, message.strip(), kind in FINAL, full, nothing_there_yet=waits, may_last=lasts)
    if (refused := _refused_by_spark(text.partition(PLAN)[0])) is not None:
        return Failure("Spark", refused, final=True)
    if python := _PYTHON.findall(text):
        return _of_python(*python[-1])
    return Failure("Spark", _first_line(text), final=False)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")[:500]


def _refused_by_spark(text: str) -> str | None:
    """Return the message of a failure that Spark calls final, with our remedy; None for another failure."""
    if sources := _SOURCES.search(text):
        return (
            f"The checkpoint is of {counted(int(sources[1]), 'processor')}, and the query reads {sources[2]}"
            ". Let the pipeline read the ones that it was started with, in their order, and give what is new "
            "a pipeline of its own; or give the pipeline a new path and a new name."
        )
    if state := _STATE.search(text):
        before, now = (_FIELD.findall(schema) for schema in state.groups())
        new = [name for name in now if name not in before]
        gone = [name for name in before if name not in now]
        named = [f"{what} {', '.join(names)}" for what, names in (("new", new), ("gone", gone)) if names]
        drop = "".join(f" or .drop({', '.join(map(repr, new))})" if new else "")
        return (
            "The state that the query keeps has other columns than its rows have now: "
            f"{'; '.join(named) or 'of other types'}. Choose the columns that it was started with before the "
            f"join, or before dropDuplicates, by .select(...){drop}: then it goes on from its checkpoint."
        )
    if NEEDS_ROCKSDB in text:
        return f"{_first_line(text)} {ROCKSDB}"
    return _first_line(text) if SPARK_REFUSES.search(text) else None


def _of_python(kind: str, message: str) -> Failure:
    lacks = kind in LACKING
    remedy = ". Spark's Python processes need it: install it where they run." if lacks else ""
    return Failure(kind, f"{kind}: {message.strip()}{remedy}", final=lacks)
