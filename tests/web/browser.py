"""The page in Chromium, served by a real server that gets its snapshots from a test."""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from anyio.from_thread import start_blocking_portal

from streamworker.web.broadcast import Broadcast, Seen
from streamworker.web.server import page
from tests.helpers import wait_for
from tests.web.groups import nothing

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
NO_SANDBOX = ["--no-sandbox"] if os.getuid() == 0 else []


class Site:
    """A server of the page. The test says what its looks find, and when they are made."""

    def __init__(self, seen: Callable[[int], Seen]) -> None:
        self._seen = seen
        self.second = 0
        self.broadcast = Broadcast("shop", nothing)
        self.url = ""
        self.before_end: list[Callable[[], None]] = []
        """What is called before the server ends: a page would write to its console that it is gone."""
        self._portal: Any = None

    def go_on(self, seconds: int = 1) -> None:
        """Let so many seconds pass, with a look in each."""
        for _ in range(seconds):
            self.second += 1
            self._portal.call(self.broadcast.arrived, self._seen(self.second))

    def fail(self, problem: str) -> None:
        """Let a look fail."""
        self._portal.call(self.broadcast.failed, problem)

    @contextmanager
    def served(self) -> Iterator["Site"]:
        """Serve from a thread of its own."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
            app, end_s = page(self.broadcast), 1
            config = uvicorn.Config(
                app, log_level="critical", lifespan="off", timeout_graceful_shutdown=end_s
            )
            server = uvicorn.Server(config)
            with start_blocking_portal() as self._portal:
                done = self._portal.start_task_soon(server.serve, [listening])
                wait_for(lambda: server.started, "it serves")
                self.go_on()
                yield self
                while self.before_end:
                    self.before_end.pop()()
                wait_for(lambda: not server.server_state.connections, "all connections are closed")
                server.should_exit = True
                done.result()
