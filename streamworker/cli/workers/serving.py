"""A small HTTP server for probes and metrics, in a thread beside the work of a process.

Whoever reaches its port may do anything, and the work goes on. So nothing here grows with what clients do:
connections are counted, a new one takes the place of the oldest, each waits for a bounded time, and what a
client does is not logged. One thread serves all, also while the worker's event loop is blocked; a page is a
coroutine that does not block. Prometheus' own server and ``http.server`` start a thread for each connection.
"""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from streamworker.errors import ConfigurationError
from streamworker.log import get_logger
from streamworker.urls import host_and_port

log = get_logger(__name__)

LOOPBACK = "127.0.0.1"
EVERY_ADDRESS = "::"
"""Of IPv6 and of IPv4; of IPv4 alone where a machine has no IPv6."""

CONNECTIONS_MAX = 50
"""Probes, a few Prometheus and a person need ten at most."""
BACKLOG = 128
"""Connections that wait in the kernel; so many are taken at a time, before some are ended."""
REQUEST_TIMEOUT_S = 10.0
"""The time for a whole request, and again for taking the answer."""
HEAD_BYTES_MAX = 16_384
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """What a page answers."""

    status: int
    body: bytes
    kind: str = TEXT
    headers: tuple[str, ...] = ()

    def encoded(self, *, with_body: bool) -> bytes:
        """Return the answer as it is sent."""
        head = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.kind}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "Connection: close",
            *self.headers,
        ]
        return "\r\n".join([*head, "", ""]).encode("latin-1") + (self.body if with_body else b"")


Page = Callable[[Mapping[str, str]], Awaitable[Response]]
"""Answers a request, of which it gets the headers by their names in small letters."""


def serve(address: str, pages: Mapping[str, Page], option: str, *, host: str = LOOPBACK) -> None:
    """Serve pages until the process ends; ``address`` is a port of ``host``, or HOST:PORT."""
    host, port = parse_address(address, option, host)
    listening = listen(host, port, option)
    threading.Thread(target=_run, args=[listening, pages], name="streamworker-http", daemon=True).start()
    log.info("serving", pages=sorted(pages), url=url_of(host, port), reached_from=reached_from(host))


def _run(listening: socket.socket, pages: Mapping[str, Page]) -> None:
    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(_trouble)
        server = await asyncio.start_server(
            _Server(pages).connected, sock=listening, limit=HEAD_BYTES_MAX, backlog=BACKLOG
        )
        await server.serve_forever()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(run())


def _trouble(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what asyncio meets, such as that no file descriptor is left for a connection."""
    log.warning("serving_troubled", what=context["message"], error=repr(context.get("exception")))


class _Server:
    """Answers each connection once, and closes it."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._busy: dict[asyncio.WriteTransport, bool] = {}
        """The open connections, the oldest first, and whether a page is made for them now."""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        connection = writer.transport
        self._make_room()
        self._busy[connection] = False
        connection.set_write_buffer_limits(0)  # To drain is to have given all of it to the kernel.
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await _head(reader)
            self._busy[connection] = True
            sent = await self._answer(head)
            self._busy[connection] = False
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                writer.write(sent)
                await writer.drain()
                writer.write_eof()
                while await reader.read(HEAD_BYTES_MAX):
                    """What is unread at the end would reset the connection, before the answer is read."""
        except (OSError, EOFError):
            """The client left, or it was too slow, or another one took its place."""
        finally:
            self._busy.pop(connection, None)
            connection.abort()

    def _make_room(self) -> None:
        """End the oldest connection if there are enough; rather one whose request is not there yet."""
        if len(self._busy) >= CONNECTIONS_MAX:
            oldest = min(self._busy, key=self._busy.__getitem__)
            del self._busy[oldest]
            oldest.abort()

    async def _answer(self, head: bytes) -> bytes:
        line, *fields = head.decode("latin-1").split("\r\n")
        method, _, rest = line.partition(" ")
        target, _, version = rest.partition(" ")
        with_body = method != "HEAD"
        if not head:
            answer = Response(431, b"the head of the request is too long\n")
        elif not version.startswith("HTTP/1."):
            answer = Response(400, b"this is no request of HTTP/1.1\n")
        elif method not in ("GET", "HEAD"):
            answer = Response(405, b"only GET and HEAD are answered\n", headers=("Allow: GET, HEAD",))
        elif (page := self._pages.get(target.partition("?")[0])) is None:
            answer = Response(404, b"not found\n")
        else:
            pairs = (field.partition(":") for field in fields)
            answer = await _made(page, {name.lower(): value.strip() for name, _, value in pairs})
        return answer.encoded(with_body=with_body)


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Return the head of a request; nothing if it is too long."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return b""


async def _made(page: Page, headers: Mapping[str, str]) -> Response:
    try:
        return await page(headers)
    except Exception:
        log.exception("page_failed")
        return Response(500, b"the page failed; the log says why\n")


def listen(host: str, port: int, option: str) -> socket.socket:
    """Return a socket that listens at an address of IPv4 or IPv6; ``::`` is each address of this machine."""
    try:
        if host == EVERY_ADDRESS and socket.has_dualstack_ipv6():
            return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
        name = None if host == EVERY_ADDRESS else host
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(found, key=lambda each: each[0])  # Of a name that has both, IPv4.
        return socket.create_server(address, family=family)
    except OSError as problem:
        raise cannot_use(host, port, option, problem) from None


def parse_address(address: str, option: str, host: str = LOOPBACK) -> tuple[str, int]:
    """Return the host and the port of an address: a port of ``host``, or HOST:PORT."""
    given, _, text = address.rpartition(":")
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise ConfigurationError(
            f"{option} is {address!r}.",
            remedy="Give a port, or HOST:PORT such as 0.0.0.0:8080, or [::]:8080 for IPv6, too.",
        )
    return given.strip("[]") or host, int(text)


def cannot_use(host: str, port: int, option: str, problem: OSError) -> ConfigurationError:
    """Return the error that an address is not to be had."""
    why = str(problem.strerror).partition(" (")[0]  # anyio repeats the address.
    return ConfigurationError(f"{option} cannot use port {port} of {host}: {why}.", remedy="Choose another.")


def url_of(host: str, port: int) -> str:
    """Return the URL of an address."""
    return f"http://{host_and_port(host, port)}"


def reached_from(host: str) -> str:
    """Say who reaches what listens at an address."""
    its = _ip(host)
    is_own = its.is_loopback if its else host == "localhost"
    return "this machine only" if is_own else "other machines too"


def is_every_address(host: str) -> bool:
    """Check for ``0.0.0.0`` and ``::``."""
    its = _ip(host)
    return its is not None and its.is_unspecified


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address; None if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
