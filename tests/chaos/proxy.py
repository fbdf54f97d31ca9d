"""A proxy between a client and the server: what networks do to bytes on their way.

It delays, holds back either direction, loses replies, resets connections, cuts replies in mid-frame
and limits the bandwidth. Bytes that are held back are delivered once it lets them pass again, also
those of a client that has hung up since: the packets of a partitioned network come late, too.
"""

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from tests.chaos.slots import OneSlot, Requests

T = TypeVar("T")
AnyProxy = TypeVar("AnyProxy", bound="Proxy")

CHUNK_BYTES = 65536
PACED_BYTES = 1024
"""What passes at a time where the bandwidth is limited."""


class Proxy:
    """Passes bytes on, or does not. Use it from one event loop."""

    def __init__(
        self, url: str, host: str = "127.0.0.1", port: int = 0, watch: OneSlot | None = None
    ) -> None:
        self._parts = urlsplit(url)
        self._host, self._port, self._watch = host, port, watch
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._lines: set[_Pipe] = set()
        self.lose = 0
        """Replies still to be lost, and their connections with them."""
        self.cut = 0
        """Replies still to be cut in the middle, and their connections with them."""
        self.only_after = b""
        """Lose and cut only replies to requests that hold these bytes."""
        self.lost = 0
        """Replies that were lost or cut so far."""
        self.connected = 0
        """Connections that were asked for so far."""
        self.delay_ms = 0.0
        """How long bytes take, each way."""
        self.bandwidth = 0
        """Bytes a second, each way; 0 for no limit."""
        self.refuse = False
        """Whether new connections are refused."""
        self.up = asyncio.Event()
        """Cleared: no request passes."""
        self.down = asyncio.Event()
        """Cleared: no reply passes."""
        self.let_pass()

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"redis://:{self._password}@{self._host}:{port}/0"

    def part(self, rng: random.Random) -> "Proxy":
        """Return what a fault of this line may be about: all of it."""
        return self

    def disturb(self, **how: Any) -> None:
        for name, value in how.items():
            assert hasattr(self, name), name
            setattr(self, name, value)

    @property
    def connections(self) -> int:
        return len(self._open)

    def hold(self, *, up: bool = True, down: bool = True) -> None:
        """Hold back what comes, one way or both."""
        if up:
            self.up.clear()
        if down:
            self.down.clear()

    def strand(self) -> int:
        """Hold back what comes on the connections that are open now, both ways; new ones are not affected."""
        for pipe in self._lines:
            pipe.free.clear()
        return len(self._lines)

    def let_pass(self) -> None:
        """Let everything pass, also what was held back."""
        self.up.set()
        self.down.set()
        for pipe in self._lines:
            pipe.free.set()

    def heal(self) -> None:
        self.lose = self.cut = self.bandwidth = 0
        self.only_after, self.delay_ms, self.refuse = b"", 0.0, False
        self.let_pass()

    def reset(self) -> int:
        """Reset all connections, as a firewall that has lost its table does; returns how many."""
        found = list(self._open)
        for writer in found:
            writer.transport.abort()
        return len(found)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, self._port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._pipes):
            task.cancel()
        writers = list(self._open)
        for writer in writers:
            writer.close()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        for writer in writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    # -- how -----------------------------------------------------------------------------------

    @property
    def _password(self) -> str:
        password = self._parts.password
        if password is None and self._parts.netloc.startswith(":"):
            password = unquote(self._parts.netloc[1:].rpartition("@")[0])
        return password or parse_qs(self._parts.query).get("password", [""])[0]

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._parts.scheme == "unix":
            return await asyncio.open_unix_connection(self._parts.path)
        return await asyncio.open_connection(self._parts.hostname, self._parts.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        if self.refuse:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        pipe = _Pipe(None if self._watch is None else self._watch.requests())
        self._lines.add(pipe)
        self._open |= {writer, up_writer}
        self._spawn(self._requests(reader, up_writer, pipe), up_writer, pipe)
        self._spawn(self._replies(up_reader, writer, pipe), writer, pipe)

    def _spawn(self, work: Coroutine[Any, Any, None], writer: asyncio.StreamWriter, pipe: "_Pipe") -> None:
        async def run() -> None:
            try:
                with contextlib.suppress(OSError):
                    await work
            finally:
                writer.close()
                self._open.discard(writer)
                pipe.ways -= 1
                if not pipe.ways:
                    self._lines.discard(pipe)

        task = asyncio.create_task(run())
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)
        task.add_done_callback(lambda _: work.close())  # It has not begun if the task was cancelled at once.

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pipe: "_Pipe"
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            pipe.armed = pipe.armed or (bool(self.only_after) and self.only_after in data)
            if pipe.requests is not None:
                pipe.requests.feed(data)
            await pipe.free.wait()
            await self._pass(data, writer, self.up)

    async def _replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pipe: "_Pipe"
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if self._watch is not None:
                self._watch.answered(data)
            await pipe.free.wait()
            await self.down.wait()
            if (self.lose > 0 or self.cut > 0) and (pipe.armed or not self.only_after):
                self.lost += 1
                if self.cut > 0:
                    self.cut -= 1
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                else:
                    self.lose -= 1
                return
            pipe.armed = False
            await self._pass(data, writer, self.down)

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter, way: asyncio.Event) -> None:
        await way.wait()
        if self.delay_ms:
            await asyncio.sleep(self.delay_ms / 1000)
            await way.wait()
        if not self.bandwidth:
            writer.write(data)
            await writer.drain()
            return
        for start in range(0, len(data), PACED_BYTES):
            part = data[start : start + PACED_BYTES]
            writer.write(part)
            await writer.drain()
            if self.bandwidth:
                await asyncio.sleep(len(part) / self.bandwidth)


class _Pipe:
    def __init__(self, requests: Requests | None) -> None:
        self.requests = requests
        self.armed = False
        """Whether the reply to come is to a request of those that ``only_after`` names."""
        self.ways = 2
        """Directions that are open."""
        self.free = asyncio.Event()
        """Cleared: nothing passes on this connection."""
        self.free.set()


class Lines:
    """The proxies of one process, one before each node of a Cluster; disturbs all of them, or some."""

    def __init__(self, proxies: Sequence[Proxy]) -> None:
        self._proxies = proxies

    @property
    def url(self) -> str:
        first, *others = [proxy.url.removesuffix("/0") for proxy in self._proxies]
        places = [first.removeprefix("redis://"), *(url.rpartition("@")[2] for url in others)]
        return f"redis+cluster://{','.join(places)}"

    def part(self, rng: random.Random) -> "Lines":
        """Return what a fault of these lines may be about: all of them, or the one to one node."""
        return self if rng.random() < 0.5 else Lines([rng.choice(self._proxies)])

    def disturb(self, **how: Any) -> None:
        for proxy in self._proxies:
            proxy.disturb(**how)

    def hold(self, *, up: bool = True, down: bool = True) -> None:
        for proxy in self._proxies:
            proxy.hold(up=up, down=down)

    def strand(self) -> int:
        """Hold back what comes on the connections that are open now; returns how many."""
        return sum(proxy.strand() for proxy in self._proxies)

    def heal(self) -> None:
        for proxy in self._proxies:
            proxy.heal()

    def reset(self) -> int:
        return sum(proxy.reset() for proxy in self._proxies)


@contextlib.asynccontextmanager
async def running(proxy: AnyProxy) -> AsyncIterator[AnyProxy]:
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


def proxied(url: str) -> AbstractAsyncContextManager[Proxy]:
    return running(Proxy(url))


class ProxyThread:
    """Proxies in an event loop of their own, for tests that have none."""

    def __init__(self) -> None:
        self._proxies: list[Proxy] = []

    def open(self, url: str, host: str = "127.0.0.1", port: int = 0, watch: OneSlot | None = None) -> Proxy:
        """Open a proxy in front of a server; closed with all others."""

        async def start() -> Proxy:
            proxy = Proxy(url, host, port, watch)
            await proxy.start()
            return proxy

        proxy = self.wait(start())
        self._proxies.append(proxy)
        return proxy

    def tell(self, what: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call something in the proxies' event loop, for instance ``proxy.hold``, and wait for it."""

        async def call() -> T:
            return what(*args, **options)

        return self.wait(call())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        for proxy in self._proxies:
            self.wait(proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
