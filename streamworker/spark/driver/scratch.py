"""Spark's working folders: one for each session; later sessions remove those of killed sessions.

A killed driver cannot remove its folder. So the next session does, if no process uses the folder any
more: the driver locks a file in the folder, and the JVM inherits the open file. The kernel releases the
lock when both processes have ended in any way. The JVM's output is kept for a week, since it may show
why the JVM ended.
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
    """Make a folder that only this user can enter; return the folder and its open lock file."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    # The file gets its name when it is locked, so an unlocked file of that name belongs to an ended session.
    coming = folder / f"{LOCK_NAME}.new"
    file = os.open(coming, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # On a file system without locks, ``sweep`` removes nothing.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        coming.rename(folder / LOCK_NAME)
    return folder, file


def sweep(now_s: float | None = None) -> list[Path]:
    """Remove the files of this user's sessions whose driver and JVM have ended; return the folders.

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
            found = folder.lstat()
            is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if is_ours and _sweep(folder, now_s):
                swept.append(folder)
    if swept:
        log.info("removed what %d killed Spark sessions left", len(swept))
    return swept


def _sweep(folder: Path, now_s: float) -> bool:
    file = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        jvm_log = folder / LOG_NAME
        if not (jvm_log.exists() and now_s - jvm_log.stat().st_mtime < LOG_KEPT_S):
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
