"""One order through FastAPI, three processors and a timer, as an OTLP receiver gets its trace.

``python -m tests.tracetree`` prints it as a tree. The spans go over HTTP, as to a collector.
"""

import os
import sys
import threading
from collections import defaultdict
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import httpx
import msgspec
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from streamworker import App, Context
from streamworker.dev.server import EmbeddedServer
from streamworker.testing import local_worker, quiet_logs

GROUP = "messaging.consumer.group.name"
received: list[Any] = []


class Receiver(BaseHTTPRequestHandler):
    """Takes what an exporter posts."""

    def do_POST(self) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
        received.extend(
            span
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        )
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


class Order(msgspec.Struct):
    """What is ordered."""

    n: int


def shop(url: str, handled: anyio.Event) -> tuple[App, FastAPI]:
    """Return the workers' part and the web's part of a shop."""
    app = App("shop", redis_url=url, tracing=True)
    orders, priced, packed, reminders = (
        app.stream(name, Order, key="n", partitions=1) for name in ("orders", "priced", "packed", "reminders")
    )

    @app.processor(orders, into=priced)
    async def price(order: Order) -> Order:
        return order

    @app.processor(priced, into=packed)
    def pack(order: Order) -> Order:
        return order

    @app.processor(packed)
    async def ship(order: Order, ctx: Context) -> None:
        ctx.state["shipped"] = {"n": order.n, "headers": ctx.headers[0]}

    @ship.timer(every="100 ms")
    async def remind(ctx: Context) -> None:
        if shipped := ctx.state.pop("shipped", None):
            ctx.send(reminders, Order(shipped["n"]), headers=shipped["headers"])

    @app.processor(reminders)
    async def mail(order: Order) -> None:
        handled.set()

    api = FastAPI()

    @api.post("/orders", status_code=202)
    async def take(n: int) -> None:
        await orders.send(Order(n))

    return app, api


async def run(url: str) -> None:
    """Take an order, and wait until its reminder is handled."""
    handled = anyio.Event()
    app, api = shop(url, handled)
    async with app, local_worker(app, url=url) as worker:
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            (await client.post("/orders", params={"n": 1})).raise_for_status()
        await handled.wait()
        await worker.until_drained()


def tree() -> str:
    """Return the trace of the order as text; a span without a parent stands below what it has a link to."""
    below: defaultdict[bytes, list[Any]] = defaultdict(list)
    by_id = {span.span_id: span for span in received}
    for span in received:
        if span.parent_span_id:
            below[span.parent_span_id].append(span)
        elif span.links:
            below[span.links[0].span_id].append(span)
    lines: list[str] = []

    def write(span: Any, first: str, rest: str) -> None:
        group = [each.value.string_value for each in span.attributes if each.key == GROUP]
        by_link = ["by a link"] if span.links and not span.parent_span_id else []
        about = ", ".join(group + by_link)
        lines.append(f"{first}{span.name}" + (f"  ({about})" if about else ""))
        children = sorted(below[span.span_id], key=lambda each: each.name)
        for index, child in enumerate(children):
            last = index == len(children) - 1
            write(child, rest + ("└── " if last else "├── "), rest + ("    " if last else "│   "))

    root = next(span for span in received if span.name == "send orders")
    while root.parent_span_id in by_id:
        root = by_id[root.parent_span_id]
    write(root, "", "")
    return "\n".join(lines)


def main() -> None:
    """Print the tree."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    quiet_logs()
    urls = sys.argv[1:]
    with nullcontext() if urls else EmbeddedServer() as own:
        anyio.run(run, urls[0] if own is None else own.url)
    provider.shutdown()
    server.shutdown()
    print(tree())


if __name__ == "__main__":
    main()
