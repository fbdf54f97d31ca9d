"""Redis Streams as an ordered, partitioned, rebalanced event log, handed to Apache Spark.

The names that an app uses are imported when they are first asked for: Spark starts several Python processes
for a query, which read rows and need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from streamworker.errors import (
    ArchiveConflict,
    ArchiveError,
    ArchiveUnavailable,
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

if TYPE_CHECKING:
    from streamworker.app import App
    from streamworker.context import Context
    from streamworker.core.data.archives import Archive
    from streamworker.core.data.entries import EntryId
    from streamworker.core.policies import DeadLetter, Halt, Policy, Retry, Skip
    from streamworker.core.protocols.claim.settings import Claim
    from streamworker.core.protocols.lease.settings import Lease
    from streamworker.core.units import Duration, Size
    from streamworker.declaring.parameters import Override, Resource
    from streamworker.declaring.processors import Processor
    from streamworker.declaring.stream import Stream
    from streamworker.declaring.table import Table
    from streamworker.declaring.timed.expiring import Expired
    from streamworker.declaring.timed.folding import OpenSession, Window
    from streamworker.declaring.timed.timers import Timer
    from streamworker.declaring.windows import Sessions, Windowed
    from streamworker.feed import Records
    from streamworker.records import Precision, RecordCodec
    from streamworker.runtime.send.named import Scheduled
    from streamworker.runtime.send.producer import Sent
    from streamworker.settings import Settings

__all__ = [
    "App",
    "Archive",
    "ArchiveConflict",
    "ArchiveError",
    "ArchiveUnavailable",
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
    "Expired",
    "Halt",
    "Lease",
    "OpenSession",
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
    "Sessions",
    "Settings",
    "Size",
    "Skip",
    "Stream",
    "StreamFull",
    "StreamworkerError",
    "Table",
    "Timer",
    "Window",
    "Windowed",
]

__version__: str

_HOMES = {
    "app": ("App",),
    "context": ("Context",),
    "core.data.archives": ("Archive",),
    "core.data.entries": ("EntryId",),
    "core.policies": ("DeadLetter", "Halt", "Policy", "Retry", "Skip"),
    "core.protocols.claim.settings": ("Claim",),
    "core.protocols.lease.settings": ("Lease",),
    "core.units": ("Duration", "Size"),
    "declaring.parameters": ("Override", "Resource"),
    "declaring.processors": ("Processor",),
    "declaring.stream": ("Stream",),
    "declaring.table": ("Table",),
    "declaring.timed.expiring": ("Expired",),
    "declaring.timed.folding": ("OpenSession", "Window"),
    "declaring.timed.timers": ("Timer",),
    "declaring.windows": ("Sessions", "Windowed"),
    "feed": ("Records",),
    "records": ("Precision", "RecordCodec"),
    "runtime.send.named": ("Scheduled",),
    "runtime.send.producer": ("Sent",),
    "settings": ("Settings",),
}
"""The modules of the names that are imported when they are asked for."""


def __getattr__(name: str) -> object:
    """Import a name at its first use."""
    if name == "__version__":
        found: object = import_module("streamworker.release").release()
    elif home := next((home for home, names in _HOMES.items() if name in names), None):
        found = getattr(import_module(f"streamworker.{home}"), name)
    else:
        raise AttributeError(f"module 'streamworker' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
