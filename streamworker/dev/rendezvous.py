"""Lets programs find the server of a ``streamworker dev`` that runs in the same folder.

``dev`` writes its server's URL to a file that only this user can read, and removes the file at its
end. Commands and programs in the folder read the file, so that ``streamworker send`` in a second terminal
reaches the workers of the first. They ignore a file whose process has ended.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from streamworker.log import get_logger
from streamworker.variables import REDIS_URL_OVERRIDE, URL_VARIABLE

FILE = Path(".streamworker-dev.json")

_log = get_logger("streamworker.dev")


@contextlib.contextmanager
def announced(url: str) -> Iterator[None]:
    """Announce the server to this folder, and give its URL to child processes, while the block runs.

    If the folder is not writable, others do not find the server; ``dev`` works all the same.
    """
    export(url)
    with contextlib.suppress(OSError):
        FILE.unlink(missing_ok=True)
        descriptor = os.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"pid": os.getpid(), "url": url}, file)
    path = FILE.absolute()
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError, KeyError):
            # A second `dev` in the folder may have replaced the file.
            if json.loads(path.read_text("utf-8"))["pid"] == os.getpid():
                path.unlink()


def export(url: str) -> None:
    """Have every app of this process, and of those that it starts, use a server."""
    os.environ[REDIS_URL_OVERRIDE] = os.environ[URL_VARIABLE] = url


def url_for(chosen: str | None) -> str | None:
    """Return the URL that an app uses, which has chosen one or none; None if nothing names one.

    The server of ``dev`` takes the place of the chosen one only in what ``dev`` starts, and in commands.
    """
    if override := os.environ.get(REDIS_URL_OVERRIDE):
        return override
    if chosen is None and URL_VARIABLE not in os.environ and (found := find()):
        _log.warning("using_server_of_dev", process=found[0], folder=str(Path.cwd()))
        return found[1]
    return chosen


def find() -> tuple[int, str] | None:
    """Return process id and URL of the ``dev`` that runs in this folder, or None.

    This user must own the file, no other user may have access to it, and the server must be on this machine:
    another user must not redirect the records.
    """
    try:
        state = FILE.stat()
        if state.st_uid != os.getuid() or state.st_mode & 0o077:
            return None
        content = json.loads(FILE.read_text("utf-8"))
        pid, url = int(content["pid"]), str(content["url"])
        os.kill(pid, 0)
        parts = urlsplit(url)
        # The process id may belong to another process by now; the socket's folder has a unique name.
        is_here = Path(parts.path).exists() if parts.scheme == "unix" else parts.hostname == "127.0.0.1"
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (pid, url) if is_here else None
