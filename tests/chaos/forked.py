"""Workers and commands by fork, so that a thousand kills do not cost a thousand starts of Python.

A start of Python with all that a worker loads takes a second of a core; a fork takes milliseconds. What
is forked is a process like any other: with connections, threads and signals of its own.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from streamworker.cli.exit_codes import ExitCode
from tests.helpers import Process

ROOT = Path(__file__).parent.parent.parent
ANSWER_S = 110.0
"""On a busy machine the process that workers are forked from needs a minute; pytest ends a test after two."""
APP = "tests.chaos.rows_app"


class Forked(Process):
    """A worker or command that was forked; where it is started again, it has another process."""

    pid: int = 0
    code: int | None = None

    def __init__(self, pid: int, name: str, environ: Mapping[str, str], log_path: Path) -> None:
        self.pid, self.name, self.environ, self.log_path = pid, name, environ, log_path

    @property
    def was_unreached(self) -> bool:
        """Whether it did not reach the server when it began, which a supervisor would start again."""
        return self.code == ExitCode.REDIS and "worker_started" not in self.log()


class Forge:
    """The process that workers are forked from; ends with all of them."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self._folder, self._root = folder, root
        self._orders = 0
        self._changed = threading.Condition()
        self._born: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._workers: dict[int, Forked] = {}
        self._is_ready = False

    def __enter__(self) -> Self:
        with (self._folder / "forge.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.forked_main", APP],
                cwd=self._root,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(self._root), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._wait("the process that workers are forked from is ready", lambda: self._is_ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(ANSWER_S)
        self._listener.join(ANSWER_S)
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, name: str, environ: Mapping[str, str], log_path: Path | None = None) -> Forked:
        """Start a worker, whose log goes to a file: one of its name if none is given."""
        return self._order(name, environ, log_path or self._folder / f"{name}.log")

    def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        log_path: Path,
        terminal: str | None = None,
    ) -> Forked:
        """Start ``python -m streamworker ARGUMENTS`` with an environment of its own.

        Its output goes to the log, or to a terminal of this name.
        """
        command = {"arguments": list(arguments), "cwd": str(cwd), "terminal": terminal}
        return self._order(" ".join(arguments), environ, log_path, **command)

    def _order(self, name: str, environ: Mapping[str, str], log_path: Path, **command: object) -> Forked:
        assert self._process.stdin is not None
        with self._changed:
            self._orders += 1
            order = self._orders
        words = {"order": order, "name": name, "environ": dict(environ), "log": str(log_path), **command}
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()
        self._wait(f"{name} is forked", lambda: order in self._born)
        with self._changed:
            pid = self._born[order]
            worker = self._workers[pid] = Forked(pid, name, environ, log_path)
            worker.code = self._ended.pop(pid, None)
        return worker

    def again(self, worker: Forked) -> None:
        """Start a worker again that has ended."""
        born = self.fork(worker.name, worker.environ, worker.log_path)
        with self._changed:
            worker.pid, worker.code = born.pid, born.code
            if born.pid in self._workers:
                self._workers[born.pid] = worker

    def end_all(self) -> None:
        for worker in list(self._workers.values()):
            worker.kill()

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, ANSWER_S):
                said = (self._folder / "forge.log").read_text("utf-8", "replace")
                raise AssertionError(f"Waited {ANSWER_S:.0f} s in vain until {what}:\n{said}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = json.loads(line)
            with self._changed:
                if "forked" in words:
                    self._born[words["order"]] = words["forked"]
                elif "ended" in words:
                    if (worker := self._workers.pop(words["ended"], None)) is not None:
                        worker.code = words["code"]
                    else:
                        self._ended[words["ended"]] = words["code"]
                else:
                    self._is_ready = True
                self._changed.notify_all()
