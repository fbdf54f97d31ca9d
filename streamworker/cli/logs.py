"""Sets up logging: lines of structlog and of the standard library have one format and one destination.

What reads JSON stops at a line that is none. So where lines are JSON, whatever Python itself would print on
stderr becomes one, too: warnings, errors that nobody catches in a thread, a finalizer or the program, and
lines that cannot be formatted.
"""

import json
import logging
import sys
import threading
import warnings
from collections import UserString
from contextlib import suppress
from types import TracebackType
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from streamworker.core.text import printable, printable_lines, storable


def configure(level: str = "info", format: str = "console") -> None:
    """Send all log lines to stderr: as text for people, or by ``json`` as one JSON object a line.

    ``auto`` is text on a terminal, and JSON elsewhere.

    Loggers of structlog and of the standard library share one handler, so that lines of processor
    functions and of streamworker keep their order.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    plain = structlog.dev.plain_traceback
    console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)
    is_json = format == "json" or (format == "auto" and not sys.stderr.isatty())
    renderers = [structlog.processors.JSONRenderer(_as_json)] if is_json else [_harmless, console]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = _Handler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # py4j, which connects Python to Spark's JVM, logs each connection and command at INFO.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    warnings.showwarning = lambda message, *_: logging.getLogger("py.warnings").warning("%s", message)
    if is_json:
        sys.excepthook = lambda *error: _uncaught("the program", *error)
        threading.excepthook = lambda args: _uncaught(f"thread {args.thread and args.thread.name}", *args[:3])
        sys.unraisablehook = lambda args: _uncaught(
            storable(args.object, repr), args.exc_type, args.exc_value, args.exc_traceback
        )


class _Handler(logging.StreamHandler[Any]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is that of ``logging``
        """Say which line could not be formatted; ``logging`` would print a traceback."""
        text = f"a log line of {record.pathname}:{record.lineno} cannot be formatted: {sys.exc_info()[1]!r}"
        told = {"name": record.name, "levelno": logging.ERROR, "levelname": "ERROR", "msg": text}
        with suppress(Exception):
            self.stream.write(self.format(logging.makeLogRecord(told)) + self.terminator)


def _uncaught(
    where: str, kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None
) -> None:
    """Log an error that nobody has caught."""
    if not issubclass(kind, SystemExit | KeyboardInterrupt):
        raised = (kind, error or kind(), traceback)
        logging.getLogger("py.errors").error("uncaught error in %s", where, exc_info=raised)


def _as_json(event: EventDict, **options: Any) -> str:
    """Return an event as JSON; what JSON cannot hold, such as NaN or a tuple as a key, as text."""
    try:
        return json.dumps(event, allow_nan=False, **options)
    except (TypeError, ValueError, RecursionError):
        texts = {str(k): each if isinstance(each, str) else storable(each, repr) for k, each in event.items()}
        return json.dumps(texts)


def _harmless(_logger: object, _name: str, event: EventDict) -> EventDict:
    """Escape control characters before the renderer adds colours; it shows the ``repr`` of a UserString."""
    shown: EventDict = {}
    for key, value in event.items():
        if key == "event":
            value = printable(str(value))
        elif key in ("exception", "stack"):
            value = "\n".join(printable_lines(str(value)))
        elif not (text := value if isinstance(value, str) else repr(value)).isprintable():
            value = UserString(text)
        shown[printable(key)] = value
    return shown
