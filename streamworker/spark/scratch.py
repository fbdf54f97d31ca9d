"""The folders in which Spark works: one for each session, taken away behind sessions that were killed.

A driver that is killed cannot take its folder away. So the next start does, where it is sure that nobody
is there any more: each folder holds a file that the driver has locked, and the JVM inherits the open
file. The kernel lets go of the lock when both are gone, however they ended. What the JVM has printed is
kept for a week, since it may say why it ended.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

log = logging.getLogger(__name__)

PREFIX = "streamworker-spark-"
LOCK_NAME, LOG_NAME = "lock", "spark.log"
LOG_KEPT_S = 7 * 86_400.0


def make_scratch() -> tuple[Path, int]:
    """Make a folder that only this user can enter; return it and the open file of its lock."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    # Renamed when it is locked: a lock that is there and free belongs to somebody who is gone.
    coming = folder / f"{LOCK_NAME}.new"
    file = os.open(coming, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: nothing will be taken away there
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        coming.rename(folder / LOCK_NAME)
    return folder, file


def sweep(now_s: float | None = None) -> list[Path]:
    """Take away what sessions of this user have left whose driver and JVM are gone; return where.

    Examples
    --------
    >>> folder, file = make_scratch()
    >>> folder in sweep()
    False
    >>> os.close(file)  # as the kernel does for a process that is killed
    >>> folder in sweep()
    True
    """
    now_s = time.time() if now_s is None else now_s
    swept = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if _is_ours(folder) and _sweep(folder, now_s):
                swept.append(folder)
    if swept:
        log.info("%d folders of Spark sessions that were killed are taken away", len(swept))
    return swept


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _sweep(folder: Path, now_s: float) -> bool:
    file = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        said = folder / LOG_NAME
        if not (said.exists() and now_s - said.stat().st_mtime < LOG_KEPT_S):
            shutil.rmtree(folder, ignore_errors=True)
            return True
        left = [each for each in folder.iterdir() if each.name not in (LOCK_NAME, LOG_NAME)]
        for each in left:
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink(missing_ok=True)
        return bool(left)
    finally:
        os.close(file)
