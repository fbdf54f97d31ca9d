"""A producer each of whose sends has a span, whose context goes into the headers of its record."""

import asyncio
from collections.abc import AsyncIterable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind

from streamworker.core.data.entries import EntryId
from streamworker.core.units import Duration
from streamworker.runtime.send.lane import OnFull, Part
from streamworker.runtime.send.named import Scheduled
from streamworker.runtime.send.producer import Due, Headers, ManySender, Producer, Sent, header_fields
from streamworker.runtime.tracing.spans import Spans, ended


class TracingProducer(Producer):
    """Sends records of one stream, with a span for each send."""

    def __init__(self, spans: Spans, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._spans = spans

    async def send(
        self, record: Any, *, id: str | None = None, headers: Headers | None = None, **more: Any
    ) -> Sent:
        """Append one record; return when Redis has it."""
        if id is None:  # ``begin`` makes its span.
            return await super().send(record, headers=headers, **more)
        with self._span("send") as span:
            sent = await super().send(record, id=id, headers=_with(span, headers), **more)
            span.set_attribute("messaging.message.id", str(sent.entry_id))
            return sent

    def begin(self, record: Any, headers: Headers | None, on_full: OnFull) -> Part:
        """Begin to send one record; its span ends when Redis has it, or when its sender gives up."""
        span = self._start("send")
        try:
            part = super().begin(record, _with(span, headers), on_full)
        except BaseException as error:
            ended(span, error)
            raise

        def done(future: "asyncio.Future[EntryId]") -> None:
            error = asyncio.CancelledError() if future.cancelled() else future.exception()
            span.set_attribute("messaging.destination.partition.id", str(part.partition))
            if error is None:
                span.set_attribute("messaging.message.id", str(future.result()))
            ended(span, error)

        part.done.add_done_callback(done)
        return part

    async def schedule(
        self, record: Any, id: str, due: Due, replace: bool, headers: Headers | None, timeout: Duration | None
    ) -> Scheduled:
        """Keep one record until it is due."""
        with self._span("schedule") as span:
            return await super().schedule(record, id, due, replace, _with(span, headers), timeout)

    async def send_many(self, records: Iterable[Any] | AsyncIterable[Any], **more: Any) -> int:
        """Append many records; one span has them all."""
        # ``_span`` records what is raised.
        quiet = {"record_exception": False, "set_status_on_exception": False}
        with self._span("send") as span, trace.use_span(span, **quiet):
            count = await super().send_many(records, **more)
            span.set_attribute("messaging.batch.message_count", count)
            return count

    def many(self, on_full: OnFull, timeout: Duration | None) -> ManySender:
        """Return what sends many records, whose headers name the current span if it is sampled."""
        sender, span = super().many(on_full, timeout), trace.get_current_span()
        if span.get_span_context().trace_flags.sampled:
            sender.headers = header_fields(_with(span, None))
        return sender

    def _start(self, operation: str) -> Span:
        name = self._spec.name
        return self._spans.start(operation, name, SpanKind.PRODUCER, type="send", stream=name)

    @contextmanager
    def _span(self, operation: str) -> Iterator[Span]:
        span = self._start(operation)
        try:
            yield span
        except BaseException as error:
            ended(span, error)
            raise
        ended(span)


def _with(span: Span, headers: Headers | None) -> Headers | None:
    """Return headers that name a span; those that a program has set take precedence."""
    header_fields(headers)  # An error names what is wrong with those of the program alone.
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return {**carrier, **(headers or {})}
