"""Spark reads the acked logs: ``source`` is the data source, ``driver`` runs an app's pipelines.

This module imports nothing before it is asked: executors load ``source`` without the rest, and ``app.py``
uses ``driver.checks`` where pyspark may not be installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamworker.spark.driver.history import history
    from streamworker.spark.into.sink import into_stream, send_rows

__all__ = ["history", "into_stream", "send_rows"]

_HOMES = {"history": "driver.history", "into_stream": "into.sink", "send_rows": "into.sink"}


def __getattr__(name: str) -> object:
    """Import a name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'streamworker.spark' has no attribute {name!r}")
    return getattr(import_module(f"streamworker.spark.{_HOMES[name]}"), name)
