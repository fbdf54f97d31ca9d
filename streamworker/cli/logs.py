"""Where log lines go and how they look: ours through structlog, the user's through logging, alike."""

import logging
import sys
from typing import Literal

import structlog

LogFormat = Literal["console", "json"]


def configure(level: str = "info", format: LogFormat = "console") -> None:
    """Send all log lines to stderr: readable ones for people, or one JSON object a line.

    Both structlog's loggers and those of the standard library are formatted the same way, so
    that what a processor function logs stands between our own lines in order.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor
    if format == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Spark's bridge tells of each connection and command at INFO.
    logging.getLogger("py4j").setLevel(logging.WARNING)
