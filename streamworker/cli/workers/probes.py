"""What ``run --health-port``, ``--metrics-port`` and the exporter serve: probes and metrics."""

import asyncio
import gzip
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from streamworker.cli.workers.serving import Page, Response
from streamworker.runtime.watch.health import Health

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector

T = TypeVar("T")

GZIP_LEVEL = 1
"""The least: metrics shrink to a tenth by it, and by the best to a fifteenth in ten times the time."""


def probes(health: Health) -> dict[str, Page]:
    """Return the pages of the three probes: 200, or 503 with what is wrong."""

    def page(check: Callable[[], str]) -> Page:
        async def answer(_headers: Mapping[str, str]) -> Response:
            problem = check()
            return Response(503 if problem else 200, f"{problem or 'ok'}\n".encode())

        return answer

    return {"/livez": page(health.live), "/readyz": page(health.ready), "/startupz": page(health.started)}


def metrics_page(metrics: "Collector") -> Page:
    """Return the page with the metrics of a registry, or of one collector."""
    from prometheus_client.exposition import choose_encoder, gzip_accepted

    scrapes = _Scrapes(metrics)

    async def answer(headers: Mapping[str, str]) -> Response:
        try:
            encode, kind = choose_encoder(headers.get("accept", ""))
        except (TypeError, ValueError):  # For a version that is no number.
            encode, kind = choose_encoder("")
        zipped = gzip_accepted(headers.get("accept-encoding", ""))
        body = await asyncio.wrap_future(scrapes.next(encode, kind, zipped))
        more = ("Content-Encoding: gzip", "Vary: Accept-Encoding") if zipped else ("Vary: Accept-Encoding",)
        return Response(200, body, kind, more)

    return answer


class _Scrapes:
    """Collects metrics in one thread, and once for all who wait for them.

    A scrape may take seconds, when Redis hardly answers or a group has a thousand partitions. Whoever asks
    meanwhile gets its result, so any number of scrapers wait as long as one.
    """

    def __init__(self, metrics: "Collector") -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, bool], tuple[Callable[[Collector], bytes], Future[bytes]]] = {}
        self._runs = False

    def next(self, encode: "Callable[[Collector], bytes]", kind: str, zipped: bool) -> Future[bytes]:
        """Return the metrics of the scrape that is under way, or of a new one."""
        with self._lock:
            _, future = self._asked.setdefault((kind, zipped), (encode, Future()))
            if not self._runs:
                threading.Thread(target=self._run, name="streamworker-scrape", daemon=True).start()
                self._runs = True  # After a start that failed the next one tries again, for all who wait.
        return future

    def _run(self) -> None:
        while True:
            found = Future[_Collected]()
            _settle(found, lambda: _Collected(self._metrics.collect()))
            with self._lock:
                asked, self._asked = self._asked, {}
            for (_, zipped), (encode, future) in asked.items():
                _settle(future, partial(_encoded, encode, found, zipped))
            with self._lock:
                self._runs = bool(self._asked)
                if not self._runs:
                    return


def _encoded(encode: "Callable[[Collector], bytes]", found: "Future[_Collected]", zipped: bool) -> bytes:
    body = encode(found.result())
    return gzip.compress(body, GZIP_LEVEL) if zipped else body


def _settle(future: Future[T], make: Callable[[], T]) -> None:
    try:
        future.set_result(make())
    except Exception as problem:  # noqa: BLE001 - told to who waits for it
        future.set_exception(problem)


class _Collected:
    """What was collected, as often as it is encoded."""

    def __init__(self, metrics: "Iterable[Metric]") -> None:
        self._metrics = list(metrics)

    def collect(self) -> "Iterable[Metric]":
        return self._metrics
