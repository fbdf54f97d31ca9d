"""Loggers that cost nothing to import.

structlog imports rich for its tracebacks, which takes 0.1 s and which ``import streamworker`` must
not do: it is imported by whoever declares or calls an app. So structlog is loaded with the first
line that is logged.
"""

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger


class _Lazy:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> object:
        import structlog

        return getattr(structlog.get_logger(self._name), method)


def get_logger(name: str) -> "BoundLogger":
    """Return a logger by name; bind fields to it as to any structlog logger."""
    return cast("BoundLogger", _Lazy(name))
