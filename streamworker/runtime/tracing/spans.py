"""The spans of workers. Names and attributes follow OpenTelemetry's conventions for messaging.

A call with one record is a child of the span that sent the record. A call with several has links to theirs:
a span has one parent. A commit is a child of its call, or has links to its calls. A message to another stream
is a child of its commit, and ends when its target has it.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from streamworker.context import Call, Context, Sending
from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.core.data.outbox import Message
from streamworker.core.policies import Skip
from streamworker.declaring.middleware import Layer
from streamworker.declaring.parameters import Parameters
from streamworker.declaring.specs import ProcessorSpec
from streamworker.records.entries import each_headers, header_fields_of, may_have_headers
from streamworker.runtime.tracing.ids import note_trace_ids, trace_ids

LINKS_MAX = 128
"""Links of one span, which is also what the SDK keeps by default."""
PARENT = b"traceparent"
UNSAMPLED = frozenset((b"0", b"2", b"4", b"6", b"8", b"a", b"c", b"e"))
"""Last digits of a W3C ``traceparent`` whose span is not sampled."""


class Spans:
    """Makes spans, in a process with a TracerProvider."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("streamworker")

    def start(
        self,
        operation: str,
        name: str,
        kind: SpanKind,
        *,
        parent: contexts.Context | None = None,
        links: Sequence[Link] = (),
        type: str = "",
        stream: str = "",
        **more: str | int,
    ) -> Span:
        """Start a span of an operation on a stream, a processor or a timer, by their name."""
        attributes: dict[str, str | int] = {"messaging.system": "streamworker"}
        attributes["messaging.operation.name"] = operation
        if type:
            attributes["messaging.operation.type"] = type
        if stream:
            attributes["messaging.destination.name"] = stream
        attributes |= {name.replace("__", "."): value for name, value in more.items()}
        return self._tracer.start_span(
            f"{operation} {name}", parent, kind=kind, links=links, attributes=attributes
        )


def ended(span: Span, error: BaseException | None = None) -> None:
    """End a span; an error that a function raised to skip its record is none of the span."""
    if error is not None and not isinstance(error, Skip):
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def context_in(headers: Mapping[bytes, bytes]) -> contexts.Context | None:
    """Return the context of the span that sent a record with these headers; None if they name none."""
    found = propagate.extract(
        {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in headers.items()}
    )
    return found if trace.get_current_span(found).get_span_context().is_valid else None


class PartitionSpans:
    """The spans of one processor in one partition, while one runner has it."""

    def __init__(self, spans: Spans, spec: ProcessorSpec, partition: int) -> None:
        self._spans = spans
        self._spec = spec
        self._partition = partition
        self._sends = spec.may_send
        self._done: dict[EntryId, SpanContext] = {}
        """Sampled calls that are in no commit yet, by their last entry; that of a timer by ``ZERO``."""

    def around(self, spec: ProcessorSpec) -> ProcessorSpec:
        """Return a processor each of whose calls has a span around it and its middleware."""
        layer = Layer("tracing", self._around, Parameters(context="ctx"))
        spec = spec.calling(
            lambda each: replace(each.call, layers=(self._timed(each.name), *each.call.layers))
        )
        return replace(spec, layers=(layer, *spec.layers))

    def _timed(self, timer: str) -> Layer:
        def around(context: Context) -> AsyncGenerator[None, None]:
            return self._around(context, timer)

        return Layer("tracing", around, Parameters(context="ctx"))

    async def _around(self, context: Context, timer: str = "") -> AsyncGenerator[None, None]:
        began = self.begin(context._call, timer)  # noqa: SLF001
        try:
            yield
        except BaseException as error:
            began.end(error)
            raise
        began.end()

    # -- calls -------------------------------------------------------------------------------------

    def begin(self, call: Call, timer: str = "") -> "BegunCall":
        """Begin the span of a call; it is the current one until it ends."""
        parent, links = contexts.Context(), []
        if len(call.entries) == 1:
            parent = context_in(header_fields_of(call.entries[0])) or parent
        else:
            links = list(_links_to(call.entries))
        about: dict[str, Any] = {"parent": parent, "links": links}
        if call.attempt > 1:
            about["streamworker__attempt"] = call.attempt
        if timer:
            span = self._spans.start("timer", timer, SpanKind.INTERNAL, **about)
        else:
            if len(call.entries) == 1:
                about["messaging__message__id"] = str(call.entries[0].id)
            else:
                about["messaging__batch__message_count"] = call.count
            span = self._start("process", SpanKind.CONSUMER, **about)
        return BegunCall(span, call, self._done, sends=self._sends)

    def _start(self, operation: str, kind: SpanKind, **about: Any) -> Span:
        stream = self._spec.stream.name
        about["messaging__consumer__group__name"] = self._spec.name
        about["messaging__destination__partition__id"] = str(self._partition)
        about.setdefault("type", operation)
        return self._spans.start(operation, stream, kind, stream=stream, **about)

    # -- commits and messages ------------------------------------------------------------------------

    def commit(self, last: EntryId, records: int) -> Span | None:
        """Start the span of a commit up to an entry; None if none of its calls was sampled."""
        if not self._done:
            return None
        calls = [self._done.pop(entry) for entry in sorted(self._done) if entry <= last]
        if not calls:
            return None
        about: dict[str, Any] = {"type": "settle", "messaging__batch__message_count": records}
        if len(calls) > 1:
            links = [Link(each) for each in calls[:LINKS_MAX]]
            return self._start("commit", SpanKind.CLIENT, parent=contexts.Context(), links=links, **about)
        return self._start("commit", SpanKind.CLIENT, parent=_within(calls[0]), **about)

    def forwards(self, commit: Span, messages: Sequence[Message]) -> dict[int, Span]:
        """Start the spans of the messages of a commit, by their numbers."""
        return {
            message.number: self._spans.start(
                "forward",
                message.to.stream,
                SpanKind.PRODUCER,
                parent=_within(commit.get_span_context()),
                type="send",
                stream=message.to.stream,
                messaging__destination__partition__id=str(message.to.partition),
                messaging__batch__message_count=message.through.records - message.since.records,
            )
            for message in messages
        }


class BegunCall:
    """A call whose span is the current one."""

    def __init__(self, span: Span, call: Call, done: dict[EntryId, SpanContext], *, sends: bool) -> None:
        self._span = span
        self._call = call
        self._done = done
        self._token = contexts.attach(trace.set_span_in_context(span))
        call.trace_ids = trace_ids
        if sends:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            call.carried = {name.encode(): value.encode() for name, value in carrier.items()}

    def end(self, error: BaseException | None = None) -> None:
        """End it, with what the function raised."""
        at = self._span.get_span_context()
        entries = self._call.entries
        if at.trace_flags.sampled:
            self._done[entries[-1].id if entries else ZERO] = at
            if not entries:
                self._link_to_sent()
        if error is not None:
            note_trace_ids(error)
        contexts.detach(self._token)
        ended(self._span, error)

    def _link_to_sent(self) -> None:
        """Link a timer to the traces that go on with what it has sent: its function has named them."""
        for each in self._call.outputs[:LINKS_MAX]:
            if isinstance(each, Sending) and each.headers and PARENT.decode() in each.headers:
                headers = {name: value for name, value in each.headers.items() if isinstance(value, str)}
                found = trace.get_current_span(propagate.extract(headers)).get_span_context()
                if found.is_valid:
                    self._span.add_link(found)


def _within(at: SpanContext) -> contexts.Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(at), contexts.Context())


def _links_to(entries: Sequence[Entry]) -> Iterator[Link]:
    """Return links to the spans that sent some records; one that was not sampled is nowhere to be found."""
    if not may_have_headers(entries):
        return
    seen: set[tuple[int, int]] = set()
    for headers in each_headers(entries):
        if (
            not headers
            or headers.get(PARENT, b"")[-1:] in UNSAMPLED
            or (found := context_in(headers)) is None
        ):
            continue
        at = trace.get_current_span(found).get_span_context()
        if at.trace_flags.sampled and (name := (at.trace_id, at.span_id)) not in seen:
            seen.add(name)
            yield Link(at)
            if len(seen) == LINKS_MAX:
                return
