"""Spark reads the acked logs: ``source`` is the data source, ``driver`` runs an app's pipelines.

This module imports nothing before it is asked: executors load ``source`` without the rest, and ``app.py``
uses ``driver.checks`` where pyspark may not be installed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamworker.spark.driver.history import history

__all__ = ["history"]


def __getattr__(name: str) -> object:
    """Import a name at its first use."""
    if name != "history":
        raise AttributeError(f"module 'streamworker.spark' has no attribute {name!r}")
    from streamworker.spark.driver.history import history

    return history
