"""A streamworker process on a terminal of its own."""

import os
import pty
import re
import select
import time
from collections.abc import Callable

from tests.chaos.forked import Forked
from tests.helpers import PATIENCE_S


class Terminal:
    """A process with a terminal of its own, 100 x 30; ``start`` is given the name of the terminal."""

    def __init__(self, start: Callable[[str], Forked]) -> None:
        self.text = ""
        self._master, self._slave = pty.openpty()
        self._process = start(os.ttyname(self._slave))

    def read(self) -> str:
        """Return all that it has written so far."""
        while select.select([self._master], [], [], 0.05)[0]:
            self.text += os.read(self._master, 65536).decode("utf-8", "replace")
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
            if self._process.code is not None:
                self.read()  # What it wrote since, and before it ended.
                return self._process.code
        raise AssertionError(f"It did not end in {timeout_s} s: {self.text[-2000:]}")

    def end(self) -> None:
        """End it if it has not ended, and close the terminal."""
        self._process.kill()
        for descriptor in (self._master, self._slave):
            os.close(descriptor)
