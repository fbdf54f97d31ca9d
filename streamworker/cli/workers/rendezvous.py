"""Lets other commands find the server of a ``streamworker dev`` that runs in the same folder.

``dev`` writes its server's URL to a file that only this user can read, and removes the file at its
end. Other commands read the file, so that ``streamworker send`` in a second terminal reaches the
workers of the first. They ignore a file whose process has ended.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from streamworker.cli.output import say
from streamworker.variables import REDIS_URL_OVERRIDE

FILE = Path(".streamworker-dev.json")


@contextlib.contextmanager
def announced(url: str) -> Iterator[None]:
    """Announce the server to commands in this folder while the block runs.

    If the folder is not writable, other commands do not find the server; ``dev`` works all the same.
    """
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


def use_running_dev() -> None:
    """Use the server of the ``dev`` that runs in this folder, if one does, and print that."""
    found = None if REDIS_URL_OVERRIDE in os.environ else find()
    if found is not None:
        os.environ[REDIS_URL_OVERRIDE] = os.environ["STREAMWORKER_REDIS_URL"] = found[1]
        say(f"Using the server of `streamworker dev` (process {found[0]}) in this folder.", error=True)


def find() -> tuple[int, str] | None:
    """Return process id and URL of the ``dev`` that runs in this folder, or None.

    This user must own the file, and no other user may have access to it: another user must not
    redirect the records.
    """
    try:
        state = FILE.stat()
        if state.st_uid != os.getuid() or state.st_mode & 0o077:
            return None
        content = json.loads(FILE.read_text("utf-8"))
        pid, url = int(content["pid"]), str(content["url"])
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    parts = urlsplit(url)
    # The process id may belong to another process by now; the socket's folder has a unique name.
    if parts.scheme == "unix" and not Path(parts.path).exists():
        return None
    return pid, url
