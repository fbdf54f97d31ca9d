"""A streamworker process on a terminal of its own."""

import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

from tests.helpers import PATIENCE_S


class Terminal:
    """A process with a terminal of its own, 100 x 30."""

    def __init__(self, arguments: list[str], cwd: Path, environ: dict[str, str]) -> None:
        self.text = ""
        self.ended = False
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.environ.update(environ, TERM="xterm-256color", COLUMNS="100", LINES="30")
            os.execv(sys.executable, [sys.executable, "-m", "streamworker", *arguments])

    def read(self) -> str:
        """Return all that it has written so far."""
        while select.select([self._master], [], [], 0.05)[0]:
            try:
                chunk = os.read(self._master, 65536)
            except OSError:  # Linux's way to say that the other side has gone.
                break
            if not chunk:
                break
            self.text += chunk.decode("utf-8", "replace")
        return self.text

    @property
    def frame(self) -> str:
        """The last picture of the live view that is whole, without colours."""
        frames = self.read().split("\x1b[H")  # Each begins at the home position.
        return re.sub(r"\x1b\[[0-9;]*m", "", frames[-2]) if len(frames) > 2 else ""

    def press(self, keys: str) -> None:
        """Type something."""
        os.write(self._master, keys.encode())

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end, reading on, and return its exit code."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.read()  # What it wrote since, and before it ended.
                self.ended = True
                os.close(self._master)
                return os.waitstatus_to_exitcode(status)
        self.end()
        raise AssertionError(f"It did not end in {timeout_s} s: {self.text[-2000:]}")

    def end(self) -> None:
        """End it if it has not ended."""
        if not self.ended:
            self.ended = True
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self._master)
