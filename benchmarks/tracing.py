"""What traces cost: ``python -m benchmarks.tracing``. Microseconds of this process's CPU for a record.

One in a hundred traces is sampled, and its spans are exported to nowhere. The runs alternate, with traces and
without, and the median of the ratios counts: other work on the machine disturbs it little.
"""

import statistics
import time
from collections.abc import Sequence

import anyio
import msgspec
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from streamworker import App
from streamworker.cli.output import say
from streamworker.dev.server import EmbeddedServer
from streamworker.testing import local_worker, quiet_logs

RECORDS, RUNS, TOGETHER = 20_000, 5, 500
SAMPLED = 0.01


class Order(msgspec.Struct):
    """What is sent."""

    n: int


class Nowhere(SpanExporter):
    """Drops spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        """Drop them."""
        return SpanExportResult.SUCCESS


async def run(url: str, *, traced: bool) -> dict[str, float]:
    """Return the CPU time of each kind of work for a record, in microseconds."""
    app = App(f"bench{time.time_ns()}", redis_url=url, tracing=traced)
    orders = app.stream("orders", Order, key="n", partitions=1)
    on = app.stream("on", Order, key="n", partitions=1)

    async def batch(batch: list[Order]) -> None: ...

    async def record(order: Order) -> None: ...

    async def hop(order: Order) -> Order:
        return order

    found: dict[str, float] = {}
    async with app:
        began = time.process_time()
        for start in range(0, RECORDS, TOGETHER):
            async with anyio.create_task_group() as tasks:
                for n in range(start, start + TOGETHER):
                    tasks.start_soon(orders.send, Order(n))
        found["send"] = time.process_time() - began
    app.processor(orders, name="batch", batch=1_000)(batch)
    app.processor(orders, name="record")(record)
    app.processor(orders, name="hop", into=on, forward=False)(hop)
    for name in ("batch", "record", "hop"):
        began = time.process_time()
        async with local_worker(app, url=url, processors=[name]) as worker:
            await worker.until_drained()
        found[name] = time.process_time() - began
    return {name: 1e6 * seconds / RECORDS for name, seconds in found.items()}


def main() -> None:
    """Print a table."""
    quiet_logs()
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(SAMPLED))
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)
    runs: list[tuple[dict[str, float], dict[str, float]]] = []
    with EmbeddedServer(maxmemory="1gb") as server:
        for _ in range(RUNS):
            off = anyio.run(lambda: run(server.url, traced=False))
            runs.append((off, anyio.run(lambda: run(server.url, traced=True))))
    say("| what | off, us of CPU a record | on, 1% sampled | on / off |\n|---|---|---|---|")
    for name in runs[0][0]:
        before, after = (statistics.median(pair[which][name] for pair in runs) for which in (0, 1))
        ratio = statistics.median(pair[1][name] / pair[0][name] for pair in runs)
        say(f"| {name} | {before:.1f} | {after:.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
