"""``run --health-port``: answers the probes of an orchestrator, and serves metrics beside them."""

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from streamworker.errors import ConfigurationError
from streamworker.log import get_logger
from streamworker.runtime.watch.health import Health
from streamworker.urls import host_and_port

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

log = get_logger(__name__)

LOOPBACK = "127.0.0.1"
REQUEST_TIMEOUT_S = 10.0
"""After this time an idle connection is closed, so that it does not hold its thread."""

Page = Callable[[str], tuple[int, str, bytes]]
"""Returns the status, the type and the body for the ``Accept`` of a request."""


def probes(health: Health) -> dict[str, Page]:
    """Return the pages of the three probes: 200, or 503 with what is wrong."""

    def page(check: Callable[[], str]) -> Page:
        def answer(_accept: str) -> tuple[int, str, bytes]:
            problem = check()
            return 503 if problem else 200, "text/plain; charset=utf-8", f"{problem or 'ok'}\n".encode()

        return answer

    return {"/livez": page(health.live), "/readyz": page(health.ready), "/startupz": page(health.started)}


def metrics_page(metrics: "Collector") -> Page:
    """Return the page with the metrics of a registry, or of one collector."""
    from prometheus_client.exposition import choose_encoder

    def answer(accept: str) -> tuple[int, str, bytes]:
        encode, kind = choose_encoder(accept)
        return 200, kind, encode(metrics)

    return answer


def serve(address: str, pages: Mapping[str, Page], option: str) -> None:
    """Serve pages from threads, until the process ends; ``address`` is a port of loopback or HOST:PORT."""
    host, port = parse_address(address, option)

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            """Answer with a page; any other path is 404."""
            page = pages.get(self.path.partition("?")[0])
            accept = self.headers.get("Accept", "")
            status, kind, body = page(accept) if page else (404, "text/plain; charset=utf-8", b"not found\n")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write nothing: probes come every few seconds."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as problem:
        raise cannot_use(host, port, option, problem) from None
    threading.Thread(target=server.serve_forever, name="streamworker-http", daemon=True).start()
    log.info("serving", pages=sorted(pages), url=url_of(host, port))


def parse_address(address: str, option: str) -> tuple[str, int]:
    """Return the host and the port of an address: a port of loopback, or HOST:PORT."""
    host, _, text = address.rpartition(":")
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise ConfigurationError(
            f"{option} is {address!r}.", remedy="Give a port, or HOST:PORT such as 0.0.0.0:8080."
        )
    return host.strip("[]") or LOOPBACK, int(text)


def cannot_use(host: str, port: int, option: str, problem: OSError) -> ConfigurationError:
    """Return the error that an address is not to be had."""
    why = str(problem.strerror).partition(" (")[0]  # anyio repeats the address.
    return ConfigurationError(f"{option} cannot use port {port} of {host}: {why}.", remedy="Choose another.")


def url_of(host: str, port: int) -> str:
    """Return the URL of an address."""
    return f"http://{host_and_port(host, port)}"
