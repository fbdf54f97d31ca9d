"""What many tests need: waiting on a condition, and real worker processes."""

import asyncio
import contextlib
import inspect
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import psutil
import structlog
from hypothesis import settings

from streamworker.core.snapshot import PartitionView
from streamworker.testing import LocalWorker, Snapshot

T = TypeVar("T")

POLL_S = 0.02
PATIENCE_S = 60.0
"""How long what has to happen is waited for. Nothing is tested by it: it ends a test that would wait for
ever, and on a busy machine a process needs ten seconds to start."""


def exchanged(port: int, said: bytes, host: str = "127.0.0.1") -> bytes:
    """Send bytes to a server of this machine, and return all that it answers until it closes."""
    with socket.create_connection((host, port), timeout=PATIENCE_S) as connection:
        connection.sendall(said)
        return answered(connection)


def answered(connection: socket.socket) -> bytes:
    """Return all that the other side sends until it closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def drawn(examples: int) -> settings:
    """Draw so many examples of a test, and a fifth of them in ``make check``, as of all other tests."""
    return settings(max_examples=examples * settings().max_examples // 100)


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file that another process writes to, without one that is half written.

    Its writer may be about to write the rest, or was killed.
    """
    return path.read_bytes().rpartition(b"\n")[0].decode("utf-8", "replace").splitlines()


def logged(paths: Iterable[Path], *events: str) -> list[dict[str, Any]]:
    """Return what workers have logged of some events, by the files of their logs."""
    lines = (line for path in paths if path.exists() for line in whole_lines(path) if line.startswith("{"))
    found = (json.loads(line) for line in lines if any(f'"{event}"' in line for event in events))
    return [each for each in found if each.get("event") in events]


def wait_for(
    predicate: Callable[[], T], description: str, timeout_s: float = PATIENCE_S, poll_s: float = POLL_S
) -> T:
    """Wait until ``predicate()`` is true and return what it returned; else fail with the description."""
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Waited {timeout_s} s in vain until {description}; last: {value!r}")
        time.sleep(poll_s)
    return value


@overload
async def wait_for_async(
    predicate: Callable[[], Awaitable[T]], description: str, timeout_s: float = ...
) -> T: ...
@overload
async def wait_for_async(predicate: Callable[[], T], description: str, timeout_s: float = ...) -> T: ...
async def wait_for_async(
    predicate: Callable[[], Any], description: str, timeout_s: float = PATIENCE_S
) -> Any:
    """Do as :func:`wait_for` does, on the event loop; ``predicate`` may be async."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = predicate()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"Waited {timeout_s} s in vain until {description}; last: {value!r}")
        await asyncio.sleep(POLL_S)


@contextlib.contextmanager
def logging_set_back() -> Iterator[None]:
    """Set logging back: a command in this process sends log lines to its stderr, which ends with it."""
    handlers, level = list(logging.root.handlers), logging.root.level
    try:
        yield
    finally:
        structlog.reset_defaults()
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)


async def until_shown(
    worker: LocalWorker, is_so: Callable[[PartitionView], bool], partition: int = 0
) -> PartitionView:
    """Wait until a partition of a worker's only processor is shown so in a snapshot; return it."""

    def view(now: Snapshot) -> PartitionView:
        (group,) = now.processors.values()
        return group.partitions[partition]

    return view(await worker.until(lambda now: is_so(view(now))))


def is_halted(view: PartitionView) -> bool:
    return view.state == "halted"


@contextlib.contextmanager
def beside(
    work: Callable[[threading.Event], Coroutine[Any, Any, None]], timeout_s: float = 120
) -> Iterator[None]:
    """Let something async run in a thread and a loop of its own, until the event that it is given is set.

    This fails if the work failed, or does not end within the timeout after that.
    """
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work(stop))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout_s)
    assert not thread.is_alive(), "what ran beside waits for something"
    assert not failed, failed


def process_is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody reaps yet (a zombie) has."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def inherited(actions: Mapping[signal.Signals, signal.Handlers]) -> Iterator[None]:
    """Have the processes that are started in here begin with these actions for signals.

    A program inherits what is ignored. So whoever starts the tests with a signal ignored, as a shell's
    script does with SIGINT for what runs in its background, would have no plain program end on it.
    """
    before = {number: signal.signal(number, action) for number, action in actions.items()}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


class Process(ABC):
    """A process that a test starts, hurts and ends, and whose output goes to a file."""

    name: str
    log_path: Path

    @property
    @abstractmethod
    def pid(self) -> int: ...

    @property
    @abstractmethod
    def code(self) -> int | None:
        """Exit code; negative for a signal, None while it runs."""

    @property
    def running(self) -> bool:
        return self.code is None

    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):  # It has just ended, and nobody has said so yet.
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to drain and leave (SIGTERM)."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL), and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        """Stop it where it stands (SIGSTOP)."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self.signal(signal.SIGCONT)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until it has ended, and return its exit code; fail with its log if it does not end in time."""
        try:
            wait_for(lambda: not self.running, f"{self.name} ends", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error} Its log:\n{self.log()}") from None
        assert self.code is not None
        return self.code

    def end(self) -> None:
        """End it and all its children, whatever their state; for teardown."""
        if self.running:
            end_family(self.pid)
            self.wait()


class LoggedProcess(Process):
    """A process in a session of its own."""

    def __init__(
        self, command: Sequence[str], *, cwd: Path, log_path: Path, environ: Mapping[str, str]
    ) -> None:
        self.name, self.log_path = command[0], log_path
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PYTHONUNBUFFERED": "1", **environ},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def code(self) -> int | None:
        return self.process.poll()


def end_family(pid: int) -> None:
    """Kill a process and all its children; those that have ended are left out."""
    try:
        family = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
