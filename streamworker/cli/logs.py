"""Sets up logging: lines of structlog and of the standard library have one format and one destination."""

import logging
import sys
import warnings
from collections import UserString

import structlog
from structlog.typing import EventDict, Processor

from streamworker.core.text import printable, printable_lines


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
    renderers = [structlog.processors.JSONRenderer()] if is_json else [_harmless, console]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stderr)
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
