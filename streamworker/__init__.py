"""Redis Streams as an ordered, partitioned, rebalanced event log, handed to Apache Spark."""

from importlib.metadata import PackageNotFoundError, version

from streamworker.app import App
from streamworker.context import Context
from streamworker.core.data.entries import EntryId
from streamworker.core.policies import DeadLetter, Halt, Policy, Retry, Skip
from streamworker.core.protocols.claim.settings import Claim
from streamworker.core.protocols.lease.settings import Lease
from streamworker.core.units import Duration, Size
from streamworker.declaring.parameters import Override, Resource
from streamworker.declaring.processors import Processor
from streamworker.declaring.stream import Stream
from streamworker.declaring.table import Table
from streamworker.declaring.timers import Timer
from streamworker.errors import (
    AuthenticationFailed,
    BackendError,
    BackendRefused,
    BackendUnavailable,
    ConfigurationError,
    DecodeError,
    ProcessDied,
    ProducerError,
    RecordError,
    StreamFull,
    StreamworkerError,
)
from streamworker.feed import Records
from streamworker.records import Precision, RecordCodec
from streamworker.runtime.send.named import Scheduled
from streamworker.runtime.send.producer import Sent
from streamworker.settings import Settings

__all__ = [
    "App",
    "AuthenticationFailed",
    "BackendError",
    "BackendRefused",
    "BackendUnavailable",
    "Claim",
    "ConfigurationError",
    "Context",
    "DeadLetter",
    "DecodeError",
    "Duration",
    "EntryId",
    "Halt",
    "Lease",
    "Override",
    "Policy",
    "Precision",
    "ProcessDied",
    "Processor",
    "ProducerError",
    "RecordCodec",
    "RecordError",
    "Records",
    "Resource",
    "Retry",
    "Scheduled",
    "Sent",
    "Settings",
    "Size",
    "Skip",
    "Stream",
    "StreamFull",
    "StreamworkerError",
    "Table",
    "Timer",
]

try:
    __version__ = version("streamworker")
except PackageNotFoundError:  # Modules on the path that nobody installed.
    __version__ = "0.0.0"
