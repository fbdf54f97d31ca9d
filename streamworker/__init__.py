"""Redis Streams as an ordered, partitioned, rebalanced event log, handed to Apache Spark."""

from streamworker.app import App, Processor, Stream
from streamworker.context import Context, Records
from streamworker.errors import (
    ConfigurationError,
    RecordError,
    StreamFull,
    StreamworkerError,
)
from streamworker.records import Precision
from streamworker.runtime.producer import Sent
from streamworker.settings import Settings

__all__ = [
    "App",
    "ConfigurationError",
    "Context",
    "Precision",
    "Processor",
    "RecordError",
    "Records",
    "Sent",
    "Settings",
    "Stream",
    "StreamFull",
    "StreamworkerError",
]

__version__ = "0.1.0"
