"""One Spark driver at a time for each checkpoint directory.

Spark does not prevent two drivers from using one checkpoint directory, and then both write the same batch.
Two drivers can run without anyone's mistake: when a driver is killed, its JVM runs the queries until it
notices, which takes seconds, and longer on a busy machine. So each checkpoint directory on a local disk
has a lock file beside it, and the JVM inherits the open file. The kernel releases the lock when the last
process that has the file open, driver or JVM, ends in any way. Nothing needs to be cleaned up.
"""

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from streamworker.errors import ConfigurationError

log = logging.getLogger(__name__)

WAIT_S = 60.0
"""How long a start waits for the previous driver. The JVM of a killed driver takes about 3 s to end."""
POLL_S = 0.1


@contextlib.contextmanager
def sole_driver(
    checkpoints: Mapping[str, Path], stop: threading.Event, wait_s: float = WAIT_S
) -> Iterator[tuple[int, ...] | None]:
    """Hold the locks of these pipelines' checkpoint directories on a local disk.

    Yields the open files, for the JVM to inherit; None if ``stop`` was set during the wait. If another
    driver still holds a lock after ``wait_s``, this is a ConfigurationError.

    >>> import tempfile
    >>> checkpoint = Path(tempfile.mkdtemp()) / "checkpoint"
    >>> with sole_driver({"revenue": checkpoint}, threading.Event()) as files:
    ...     len(files)
    1
    """
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as held:
        files: dict[Path, int] = {}
        for name, checkpoint in checkpoints.items():
            lock_path = checkpoint.with_name(f"{checkpoint.name}.lock")
            if lock_path in files:
                continue
            try:
                lock_path.parent.mkdir(parents=True, exist_ok=True)
                file = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                held.callback(os.close, file)
                locked = _lock(file, name, lock_path, deadline, stop)
            except OSError as error:
                # The file system has no locks, or cannot be written to; then Spark reports that.
                log.warning(
                    "%s cannot be locked (%s): make sure that only one driver uses it", lock_path, error
                )
                continue
            if not locked:
                yield None
                return
            files[lock_path] = file
        yield tuple(files.values())


def _lock(file: int, name: str, lock_path: Path, deadline: float, stop: threading.Event) -> bool:
    """Wait for a lock and take it; return False if ``stop`` is set first."""
    is_logged = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise ConfigurationError(
                    f"Another Spark driver runs pipeline {name!r}: it holds {lock_path}.",
                    remedy=f"End it first; `fuser {lock_path}` names its processes. Two drivers that write "
                    "one table may corrupt it.",
                ) from None
            if not is_logged:
                log.info("pipeline %s waits for the previous driver to end", name)
            is_logged = True
            if stop.wait(POLL_S):
                return False
        else:
            return True
