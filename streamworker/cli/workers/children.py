"""Child processes of ``run`` and ``dev``: started together and stopped in two stages.

Each child has its own session, so that Ctrl-C at the terminal signals this process only, and no
child gets a second signal by accident. Each child's stdin is a pipe that only this process holds.
The child stops when the pipe closes (see :func:`end_with_parent`), even if this process is killed.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Self

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.support import say

POLL_S = 0.1
FORCE_ORPHAN_AFTER_S = 10.0
"""How long a child may run after its parent has ended; longer than the default ``grace_period_ms``."""
KILL_AFTER_S = 5.0
"""How long a child may run after the second signal before it is killed."""


@dataclass(eq=False)
class Started:
    """A ``streamworker`` command that runs as a child process.

    It stops by itself on a signal. A :class:`streamworker.dev.children.Child` is any program, and a
    shell beside it stops it.
    """

    name: str
    essential: bool
    """Whether all children stop once no essential one runs. Workers are essential, Spark is not."""
    process: "subprocess.Popen[bytes]"
    reported: bool = field(default=False)

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self.process.poll() is None


class Children:
    """The children of this process; a context manager that kills those still running at its end.

    Parameters
    ----------
    environ
        Environment variables for the children, in addition to those of this process.
    log_file
        File for the children's output; None for stderr of this process.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, log_file: Path | None = None) -> None:
        self._environ = {**os.environ, **(environ or {})}
        self._log_file = log_file
        self._children: list[Started] = []
        self._stopping = False
        self._forced = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self._children:
            _kill(child)
            if child.process.stdin is not None:
                child.process.stdin.close()

    @property
    def running(self) -> bool:
        """Whether a worker runs; after ``stop``, whether any child runs."""
        return any(child.running and (child.essential or self._stopping) for child in self._children)

    def start(self, name: str, arguments: Sequence[str], *, essential: bool = True) -> Started:
        """Start ``streamworker ARGUMENTS`` as a child."""
        with contextlib.ExitStack() as files:
            output: IO[bytes] | None = None
            if self._log_file is not None:
                # Lines of several children may alternate, but none is cut: each process appends a
                # line in one write.
                output = files.enter_context(self._log_file.open("ab"))
            process = subprocess.Popen(
                [sys.executable, "-m", "streamworker", *arguments, "--end-with-parent"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._environ,
                start_new_session=True,
            )
        child = Started(name, essential, process)
        self._children.append(child)
        if self._stopping:
            process.terminate()
        return child

    def stop(self) -> None:
        """Send SIGTERM to all children, once: they finish their batches and end."""
        if not self._stopping:
            self._stopping = True
            self._signal(signal.SIGTERM)

    def force(self) -> None:
        """Send SIGTERM again, and kill the children that still run after ``KILL_AFTER_S``."""
        self._stopping = self._forced = True
        self._signal(signal.SIGTERM)
        timer = threading.Timer(KILL_AFTER_S, self._kill_all)
        timer.daemon = True
        timer.start()

    def wait(self) -> int:
        """Wait until all children have ended, and return the exit code for this process.

        When no worker runs any more, the other children are stopped. The code is that of a worker
        that failed, else 1 if another child failed. A worker that a signal killed is reported, but
        is no failure if another worker ended with 0: that one has taken over its partitions.
        """
        while self.running:
            self.report()
            time.sleep(POLL_S)
        if not self._stopping:
            self.stop()
        while any(child.running for child in self._children):
            time.sleep(POLL_S)
        self.report()
        return self._exit_code()

    def report(self) -> None:
        """Print each child that has failed since the last call."""
        for child in self._children:
            code = self._code(child)
            if code and not child.reported:
                child.reported = True
                where = f" The log: {self._log_file}" if self._log_file is not None else ""
                how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
                say(f"{child.name} {how}.{where}", error=True)

    @property
    def failed(self) -> bool:
        """Whether a child has ended with a code other than 0."""
        return any(self._code(child) for child in self._children)

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.running:
                child.process.send_signal(number)

    def _kill_all(self) -> None:
        for child in self._children:
            _kill(child)

    def _exit_code(self) -> int:
        if self._forced:
            return ExitCode.FORCED
        workers = [self._code(child) for child in self._children if child.essential]
        for code in workers:
            if code is not None and code > 0:
                return code
        others = [self._code(child) for child in self._children if not child.essential]
        return ExitCode.OK if 0 in workers and not any(others) else ExitCode.FAILED

    def _code(self, child: Started) -> int | None:
        """Return a child's exit code; None while it runs."""
        code = child.process.poll()
        # The child got SIGTERM before it had its signal handler: it had no batch yet.
        return 0 if self._stopping and code == -signal.SIGTERM else code


def _kill(child: Started) -> None:
    """Kill a child and the processes that it started, which are in its process group."""
    if child.running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()


@contextlib.contextmanager
def two_stages(first: Callable[[], None], second: Callable[[], None]) -> Iterator[None]:
    """Call ``first`` at the first SIGINT, SIGTERM or SIGHUP, and ``second`` at any further one."""
    count = 0

    def received(_number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        (first if count == 1 else second)()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, received) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """Send this process SIGTERM when stdin closes, which happens when the parent ends.

    A second SIGTERM follows later: the server of ``dev`` has ended with the parent, so a worker
    cannot commit or leave, and would wait until its own deadline.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(FORCE_ORPHAN_AFTER_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
