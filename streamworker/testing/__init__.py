"""Tools for tests of programs that use streamworker: a worker in the test's own process, without a server.

See :func:`local_worker`.
"""

from streamworker.core.snapshot import GroupSnapshot
from streamworker.dev.server import EmbeddedServer
from streamworker.testing.context import FakeContext, fake_context
from streamworker.testing.local import LocalWorker, Snapshot, local_worker, quiet_logs
from streamworker.testing.memory import MemoryServer
from streamworker.testing.stored import Waits

__all__ = [
    "EmbeddedServer",
    "FakeContext",
    "GroupSnapshot",
    "LocalWorker",
    "MemoryServer",
    "Snapshot",
    "Waits",
    "fake_context",
    "local_worker",
    "quiet_logs",
]
