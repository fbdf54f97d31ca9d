"""Archives of a worker: whose they are, and the archiver of acked logs.

Workers without an archive load nothing of ``streamworker.archive``.
"""

from typing import Any


async def archive_log(*given: Any) -> None:
    """Archive the acked logs of a worker's partitions: see ``logs.archive_log``."""
    from streamworker.runtime.archive import logs

    await logs.archive_log(*given)
