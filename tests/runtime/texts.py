"""Text of others: its kinds, and the ways on which it comes to Redis and to logs.

The tests run each kind on each way; docs/operations.md shows both tables.
"""

from typing import Any


class Mute(str):
    """Text that cannot be read."""

    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__
    __getitem__ = __str__  # type: ignore[assignment]


HUGE = 10_000_000
TEXTS: dict[str, tuple[Any, str]] = {
    "half of a surrogate pair": ("caf\ud83d", r"caf\ud83d"),
    "NUL": ("a\0b", r"a\u0000b"),
    "other control characters": ("a\x1b[2J\r\nb", r"a\u001b[2J b"),
    "10 MB": ("x" * HUGE, "x" * 900),
    "an object whose `str()` raises": (Mute("mute"), "() of it raises an error, too"),
}
"""Each kind of text, and a part of what is stored in place of it."""

ESCAPED: dict[str, str] = {
    "an exception, under `DeadLetter()`": "the dead letter, with its traceback, and the log",
    "an exception, under `Skip()`": "the log",
    "an exception, under `Halt()`": "the reason in the lock, `status`, the log",
    "an exception, under `Retry()`": "the reason in the lock, `status`, the log",
    "a cause and a note of an exception": "the traceback in the dead letter and in the log",
    "the name of an exception's class": "the dead letter and the log",
    "the name of a file of code": "the dead letter and the log",
    "`raise DeadLetter(text)`": "the dead letter and the log",
    "`raise Skip(text)`": "the log",
    "`raise Halt(text)`": "the reason in the lock, `status`, the log",
    "`ctx.dead_letter(record, text)`": "the dead letter and the log",
    "`ctx.skip(record, text)`": "the log",
    "`errors=DeadLetter(text)`": "the dead letter and the log",
    "a record's class that does not decode it": "the dead letter and the log",
    "a codec of your own": "the dead letter and the log",
    "a middleware": "the dead letter and the log",
    "a value of the wrong type that is returned": "the dead letter and the log",
    "a timer": "the reason in the lock, `status`, the log",
    "`--why` of an operator, and the operator's name": "the lock, `status`, `history`, the log",
    "the name of a host": "the document of the members, `status`, the log",
    "a credential provider": "the error of the call, the log",
}
"""Where text comes from, and where it goes: there it stands in one line, with escapes, and cut."""

REFUSED: dict[str, str] = {
    "a key of `ctx.state`": "a `RecordError` in the call",
    "a key of a table": "a `RecordError` in the call",
    "a header or a key, at `send` and `ctx.send`": "a `RecordError`",
    "an id, at `send` and `schedule`": "a `RecordError`",
    "the name of an app, stream, processor, timer, worker, and a static id": "a `ConfigurationError`",
}
"""Where text is a name by which something is found again: what UTF-8 cannot hold is refused."""
