"""Loggers that import structlog only when they are first used, and that obey a program without structlog.

structlog imports rich for its tracebacks, which takes 0.1 s. ``import streamworker`` must not do that,
since every program that declares or calls an app imports it. So the first logged line imports structlog.

A program that has configured structlog gets the lines by its configuration. To any other they are lines of
the standard library's loggers ``streamworker...``, with the levels and handlers that it has given these: by
default warnings on stderr, and no others.
"""

import logging
from typing import TYPE_CHECKING, cast

from streamworker.core.text import printable, printable_lines

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger
    from structlog.typing import EventDict


class _Lazy:
    __slots__ = ("_fields", "_name")

    def __init__(self, name: str, fields: dict[str, object]) -> None:
        self._name, self._fields = name, fields

    def bind(self, **fields: object) -> "_Lazy":
        return _Lazy(self._name, {**self._fields, **fields})

    def __getattr__(self, method: str) -> object:
        import structlog

        if structlog.is_configured():
            return getattr(structlog.get_logger(self._name, **self._fields), method)
        plain = structlog.wrap_logger(
            logging.getLogger(self._name),
            processors=[structlog.stdlib.filter_by_level, structlog.processors.format_exc_info, _in_words],
            wrapper_class=structlog.stdlib.BoundLogger,
        )
        return getattr(plain.bind(**self._fields), method)


def _in_words(_logger: object, _method: str, event: "EventDict") -> str:
    """Write an event as one line, with a traceback below it."""
    name, exception = str(event.pop("event")), str(event.pop("exception", ""))
    line = " ".join([printable(name), *(f"{key}={value!r}" for key, value in event.items())])
    return "\n".join([line, *printable_lines(exception)]) if exception else line


def get_logger(name: str) -> "BoundLogger":
    """Return a logger by name; bind fields to it as to any structlog logger."""
    return cast("BoundLogger", _Lazy(name, {}))
