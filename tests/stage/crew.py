"""Workers of one app, who are forked with one environment, and what they have logged."""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.chaos.forked import Forge, Forked
from tests.helpers import logged


class Crew:
    """Workers by their names, each with a log whose file's name begins with ``prefix``."""

    def __init__(self, forge: Forge, folder: Path, environ: Mapping[str, str], prefix: str = "") -> None:
        self.forge, self.folder, self.environ = forge, folder, environ
        self.workers: dict[str, Forked] = {}
        """Those who are to work."""
        self.all_workers: list[Forked] = []
        self._prefix = prefix

    def hire(self, *names: str, **environ: str) -> None:
        for name in names:
            log_path = self.folder / f"{self._prefix}{name}.log"
            worker = self.forge.fork(name, {**self.environ, **environ}, log_path)
            self.workers[name] = worker
            self.all_workers.append(worker)

    def kill(self, name: str) -> None:
        self.workers.pop(name).signal(signal.SIGKILL)

    def ask_to_leave(self, name: str) -> Forked:
        worker = self.workers.pop(name)
        worker.terminate()
        return worker

    def logged(self, *events: str) -> list[dict[str, Any]]:
        """Return the log lines of some events, of all workers that there ever were."""
        return logged({worker.log_path: None for worker in self.all_workers}, *events)
