"""How other commands find the server of a ``streamworker dev`` that runs in the same folder.

``dev`` writes a file with the URL of its server, which only this user can read, and removes it
when it ends. The other commands look for it, so that ``streamworker send`` in a second terminal
reaches the workers of the first. A file whose writer has gone is ignored.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from streamworker.cli.support import say

OVERRIDE = "STREAMWORKER_DEV_REDIS_URL"
"""As in ``importing``, which is too heavy to load for a help text."""
FILE = Path(".streamworker-dev.json")


@contextlib.contextmanager
def announced(url: str) -> Iterator[None]:
    """Let commands in this folder find the server while the block runs.

    Where the folder cannot be written to nobody finds it, and all else works.
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
            # A second `dev` in the folder may have taken its place.
            if json.loads(path.read_text("utf-8"))["pid"] == os.getpid():
                path.unlink()


def use_running_dev() -> None:
    """Take the server of the ``dev`` that runs in this folder, and say so; nothing without one."""
    found = None if OVERRIDE in os.environ else find()
    if found is not None:
        os.environ[OVERRIDE] = os.environ["STREAMWORKER_REDIS_URL"] = found[1]
        say(f"Using the server of `streamworker dev` (process {found[0]}) in this folder.", error=True)


def find() -> tuple[int, str] | None:
    """Return process id and URL of the ``dev`` that runs in this folder, if one does.

    The file must be this user's own and closed to others: somebody else must not decide where
    our records go.
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
    # Process ids are used again; the socket's folder has a name that is not.
    if parts.scheme == "unix" and not Path(parts.path).exists():
        return None
    return pid, url
