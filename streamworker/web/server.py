"""Serves the page: who may have it, and how a browser must treat it."""

import hmac
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamworker.web.broadcast import Broadcast

STATIC = Path(__file__).parent / "static"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")

_OWN_HOST = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::([0-9]{1,5}))?", re.IGNORECASE)
"""What ``Host`` may say without a token. Tunnels and proxies of this machine have ports of their own."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The headers of each answer: no script and no style but ours, in no frame, kept nowhere."""


def page(broadcast: Broadcast, token: str = "") -> ASGIApp:
    """Return the web application; with a token, only who knows it gets anything."""

    async def events(request: Request) -> Response:
        processor = request.query_params.get("processor", "")
        unbuffered = {"X-Accel-Buffering": "no"}  # nginx would collect events.
        return StreamingResponse(
            broadcast.events(processor), headers=unbuffered, media_type="text/event-stream"
        )

    async def at(request: Request) -> Response:
        text = request.query_params.get("ms", "")
        ms = int(text) if text.isdecimal() and len(text) < 16 else 0
        found = broadcast.at(request.query_params.get("processor", ""), ms)
        return Response(found or b"null", media_type="application/json")

    async def index(_request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    routes = [Route("/", index), Route("/events", events), Route("/at", at)]
    inner = Starlette(routes=[*routes, Mount("/static", StaticFiles(directory=STATIC))])
    return Guard(inner, broadcast.app, token)


class Guard:
    """Lets through who may see the page, and adds ``HEADERS`` to each answer.

    Without a token only this machine reaches the server, and a request must name it: a page of a foreign name
    that leads to this machine (DNS rebinding) would otherwise be read by that name's owner. The header is
    compared as it came, since Starlette takes the server's own address for a name that it cannot parse, and
    browsers and DNS know such names.

    Browsers send a cookie to each port of a host. Its name tells views apart: by the app, and by the token,
    as two views of one app may differ in their namespace. It has no path, so a browser takes the folder of
    the page as its address names it, which a server behind a proxy does not know.
    """

    def __init__(self, inner: ASGIApp, app: str, token: str) -> None:
        self._inner = inner
        self._token = _digest(token) if token else ""
        self._cookie = f"streamworker_{app}_{self._token[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        inner = self._answer(Request(scope)) or self._inner
        await inner(scope, receive, sending)

    def _answer(self, request: Request) -> Response | None:
        """Return the answer to a request that is not passed on."""
        if not self._token:
            if _names_this_machine(request.headers.getlist("host")):
                return None
            said = "This page is for this machine, by its own name. Start it with --token for other names.\n"
            return PlainTextResponse(said, 403)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        known = [request.cookies.get(self._cookie, ""), _digest(bearer) if scheme.lower() == "bearer" else ""]
        if any(hmac.compare_digest(each.encode(), self._token.encode()) for each in known):
            return None
        given = request.query_params.get("token")
        if given is not None and hmac.compare_digest(_digest(given), self._token):
            # The address without the token: it stays in no history and in no picture of the screen.
            answer = RedirectResponse(".", 303)
            secure = request.headers.get("x-forwarded-proto", request.url.scheme) == "https"
            answer.set_cookie(
                self._cookie, self._token, path=None, httponly=True, samesite="lax", secure=secure
            )
            return answer
        said = (
            "This page needs its token: add ?token=... to the address once, or send it as a bearer token.\n"
        )
        return PlainTextResponse(said, 401, {"WWW-Authenticate": "Bearer"})


def _names_this_machine(hosts: Sequence[str]) -> bool:
    """Check the ``Host`` headers of a request; without one, or with two, nobody knows what was meant."""
    found = _OWN_HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    return found is not None and 0 < int(found[1] or 80) < 65536


def _digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


async def serve(broadcast: Broadcast, sockets: Sequence[Any], token: str) -> None:
    """Serve the page on open sockets until a signal ends the process."""
    import anyio
    import uvicorn

    # Tabs hold their connections for as long as they are open, so nothing is waited for at the end.
    config = uvicorn.Config(
        page(broadcast, token), log_level="critical", access_log=False, lifespan="off",
        server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    async with anyio.create_task_group() as group:
        group.start_soon(broadcast.run)
        await uvicorn.Server(config).serve(list(sockets))
        group.cancel_scope.cancel()
