"""Tools for tests of programs that use streamworker: a worker in the test's own process.

See :func:`local_worker`.
"""

from streamworker.core.snapshot import GroupSnapshot
from streamworker.testing.local import LocalWorker, local_worker, quiet_logs

__all__ = ["GroupSnapshot", "LocalWorker", "local_worker", "quiet_logs"]
