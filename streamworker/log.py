"""Loggers that import structlog only when they are first used.

structlog imports rich for its tracebacks, which takes 0.1 s. ``import streamworker`` must not do that,
since every program that declares or calls an app imports it. So the first logged line imports structlog.
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
