"""A proxy between a client and the server that can lose replies: what networks do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, unquote, urlsplit


class Proxy:
    """Passes bytes on; while ``lossy`` is positive, that many replies end their connection instead."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self.lose = 0
        """Replies still to be lost."""
        self.only_after = b""
        """Lose only replies to requests that hold these bytes."""
        self.lost = 0
        self.passing = asyncio.Event()
        """Cleared: nothing passes in either direction."""
        self.passing.set()

    @property
    def url(self) -> str:
        """The URL of the proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"redis://:{self._password}@127.0.0.1:{port}/0"

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
        up_reader, up_writer = await self._connect()
        armed = [False]
        for task in (
            asyncio.create_task(self._requests(reader, up_writer, armed)),
            asyncio.create_task(self._replies(up_reader, writer, armed)),
        ):
            self._pipes.add(task)
            task.add_done_callback(self._pipes.discard)
        self._open |= {writer, up_writer}

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, armed: list[bool]
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await self.passing.wait()
                armed[0] = armed[0] or (bool(self.only_after) and self.only_after in data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, armed: list[bool]
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await self.passing.wait()
                if self.lose > 0 and (armed[0] or not self.only_after):
                    self.lose -= 1
                    self.lost += 1
                    break
                armed[0] = False
                writer.write(data)
                await writer.drain()
        writer.close()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        """Close everything."""
        assert self._server is not None
        self._server.close()
        for task in list(self._pipes):
            task.cancel()
        for writer in self._open:
            writer.close()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        for writer in self._open:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """Open a proxy in front of a server."""
    proxy = Proxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
