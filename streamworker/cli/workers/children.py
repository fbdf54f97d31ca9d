"""The child processes of ``run`` and ``dev``: two stages to stop them, reports and an exit code."""

import contextlib
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol, Self

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.output import say
from streamworker.core.text import printable_lines
from streamworker.dev.children import Child
from streamworker.handlers import handle

OURS = (sys.executable, "-m", "streamworker")
POLL_S = 0.1
KILL_AFTER_S = 5.0
"""How long a child may run after the second signal before it is killed."""


class Ends(Protocol):
    """A process, as far as its end is concerned."""

    @property
    def exit_code(self) -> int | None:
        """Exit code; negative for a signal, None while it runs."""


class Children:
    """The children of this process; a context manager that kills those still running at its end.

    Their output goes to ``log_file``; if it is None, to stdout and stderr of this process.
    """

    def __init__(self, log_file: Path | None = None) -> None:
        self._log_file = log_file
        self._children: dict[str, Child] = {}
        self._workers: list[Child] = []
        self._beside: dict[str, Ends] = {}
        self._reported: set[str] = set()
        self._failures: dict[str, str] = {}
        self._stopping = False
        self._kill_at_s = math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_all()

    @property
    def running(self) -> bool:
        """Whether a worker runs; after ``stop``, whether any child runs; False after ``force``."""
        waited_for = self._children.values() if self._stopping else self._workers
        return not self._forced and any(child.running for child in waited_for)

    def start(
        self, name: str, arguments: Sequence[str], *, is_worker: bool = True, runs: Sequence[str] = OURS
    ) -> Child:
        """Start a program, ``streamworker`` by default, as a child. All children stop once no worker runs."""
        # Lines of several children may alternate in the log, but none is cut: each process appends a line
        # in one write.
        child = self._children[name] = Child([*runs, *arguments], log_path=self._log_file, private=False)
        if is_worker:
            self._workers.append(child)
        if self._stopping:
            child.terminate()
        return child

    def watch(self, name: str, process: "Ends") -> None:
        """Report the end of a process that somebody else starts and stops; it is a failure."""
        self._beside[name] = process

    def stop(self) -> None:
        """Send SIGTERM to all children, once: they finish their batches and end."""
        if not self._stopping:
            self._stopping = True
            for child in self._children.values():
                child.terminate()

    def force(self) -> None:
        """Send SIGTERM again; ``wait`` kills the children that still run after ``KILL_AFTER_S``."""
        self._kill_at_s = time.monotonic() + KILL_AFTER_S
        self._stopping = False
        self.stop()

    def wait(self) -> int:
        """Wait until all children have ended, and return the exit code for this process.

        When no worker runs any more, the other children are stopped. The code is that of a worker
        that failed, else 1 if another child failed. A worker that a signal killed is reported, but
        is no failure if another worker ended with 0: that one has taken over its partitions.
        """
        while self.running:
            self.report()
            time.sleep(POLL_S)
        self.stop()
        while any(child.running for child in self._children.values()):
            if time.monotonic() > self._kill_at_s:
                self._kill_all()
            time.sleep(POLL_S)
        self.report()
        return self._exit_code()

    def report(self) -> None:
        """Print each child that has failed since the last call."""
        for name, child in self._all.items():
            code = self._code(child)
            if code and name not in self._reported:
                self._reported.add(name)
                where = f" The log: {self._log_file}" if self._log_file is not None else ""
                say(f"{name} {_ended(code)}.{where}", error=True)

    def failures(self) -> Sequence[str]:
        """Return a text for each child that has failed, with the last error in the log at that time."""
        for name, child in self._all.items():
            if name not in self._failures and (code := self._code(child)):
                self._failures[name] = f"{name} {_ended(code)}. {self._last_error()}"
        return list(self._failures.values())

    def _last_error(self) -> str:
        if self._log_file is None or not self._log_file.exists():
            return ""
        lines = list(map(str.strip, printable_lines(self._log_file.read_text("utf-8", "replace"))))
        at = next((at for at in reversed(range(len(lines))) if "error" in lines[at].lower()), None)
        if at is None:
            return f"The log: {self._log_file}"
        # A command says what is wrong, and in the next line what to do.
        return " ".join(lines[at : at + 2 if lines[at].startswith("Error: ") else at + 1])

    @property
    def failed(self) -> bool:
        """Whether a child has ended with a code other than 0."""
        return any(self._code(child) for child in self._all.values())

    @property
    def _all(self) -> dict[str, "Ends"]:
        return {**self._children, **self._beside}

    @property
    def _forced(self) -> bool:
        return self._kill_at_s < math.inf

    def _kill_all(self) -> None:
        for child in self._children.values():
            child.kill()

    def _exit_code(self) -> int:
        if self._forced:
            return ExitCode.FORCED
        workers = [self._code(child) for child in self._workers]
        if failed := [code for code in workers if code is not None and code > 0]:
            return failed[0]
        others = [self._code(child) for child in self._all.values() if child not in self._workers]
        return ExitCode.OK if 0 in workers and not any(others) else ExitCode.FAILED

    def _code(self, child: "Ends") -> int | None:
        """Return a child's exit code; None while it runs."""
        code = child.exit_code
        # The child got SIGTERM before it had its signal handler: it had no batch yet.
        return 0 if self._stopping and code == -signal.SIGTERM else code


def _ended(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with {code}"


@contextlib.contextmanager
def two_stages(first: Callable[[], None], second: Callable[[], None]) -> Iterator[None]:
    """Call ``first`` at the first SIGINT, SIGTERM or SIGHUP, and ``second`` at any further one."""
    count = 0

    def received(_number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        (first if count == 1 else second)()

    before = handle((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), received)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
