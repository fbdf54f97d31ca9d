"""The page in Chromium, served by a real server that gets its snapshots from a test."""

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from anyio.from_thread import start_blocking_portal
from starlette.types import Receive, Scope, Send

from streamworker.web.broadcast import Broadcast, Seen
from streamworker.web.server import page
from tests.helpers import wait_for
from tests.web.groups import nothing

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
NO_SANDBOX = ["--no-sandbox"] if os.getuid() == 0 else []


class Site:
    """A server of the page. The test says what its looks find, and when they are made."""

    def __init__(self, seen: Callable[[int], Seen], token: str = "") -> None:
        self._seen = seen
        self.second = 0
        self.broadcast = Broadcast("shop", nothing)
        self.url = ""
        self.before_end: list[Callable[[], None]] = []
        """What is called before the server ends: a page would write to its console that it is gone."""
        self._portal: Any = None
        self.use_token(token)

    def use_token(self, token: str) -> None:
        """Answer as a server that was started with this token, or without one."""
        self._page = page(self.broadcast, token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._page(scope, receive, send)

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
            config = uvicorn.Config(self, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
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


class Proxy:
    """Stands before a site, and answers 502 while it is away, as nginx and each Ingress do."""

    def __init__(self, site: Site) -> None:
        self._to = int(site.url.rpartition(":")[2].strip("/"))
        self._open: list[socket.socket] = []
        self.is_away = False

    def go_away(self, *, for_long: bool = True) -> None:
        """Break all connections, as a server that ends; for long, answer 502 from now on."""
        self.is_away = for_long
        while self._open:
            with suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve from threads, and return the address of the page."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            threading.Thread(target=self._accept, args=[listening], daemon=True).start()
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
            listening.shutdown(socket.SHUT_RDWR)
            self.go_away()

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=self._connect, args=[client], daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client:
            if self.is_away:
                with suppress(OSError):
                    client.recv(65536)
                    client.sendall(
                        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    )
                return
            with socket.create_connection(("127.0.0.1", self._to)) as server:
                self._open += [client, server]
                back = threading.Thread(target=_pump, args=[client, server], daemon=True)
                back.start()
                _pump(server, client)
                back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
