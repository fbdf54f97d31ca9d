"""What others ask of traces. Nothing of OpenTelemetry is imported unless the app asks for it."""

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from streamworker.declaring.specs import ProcessorSpec
from streamworker.errors import ConfigurationError
from streamworker.log import get_logger
from streamworker.runtime.send.producer import Producer
from streamworker.settings import Settings

if TYPE_CHECKING:
    from streamworker.runtime.tracing.spans import PartitionSpans


def traced(
    spec: ProcessorSpec, partition: int, settings: Settings
) -> "tuple[ProcessorSpec, PartitionSpans | None]":
    """Return a processor whose calls have spans, and what makes them, if the app is traced."""
    if not _is_traced(settings):
        return spec, None
    from streamworker.runtime.tracing.spans import PartitionSpans, Spans

    spans = PartitionSpans(Spans(), spec, partition)
    return spans.around(spec), spans


def producer_kind(settings: Settings) -> Callable[..., Producer]:
    """Return what makes a producer."""
    if not _is_traced(settings):
        return Producer
    from streamworker.runtime.tracing.sending import TracingProducer
    from streamworker.runtime.tracing.spans import Spans

    return partial(TracingProducer, Spans())


def _is_traced(settings: Settings) -> bool:
    """Return whether the app asks for traces and the process has a TracerProvider."""
    if not settings.tracing:
        return False
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ConfigurationError(
            f"tracing=True needs the API of OpenTelemetry: {error}.",
            remedy="Install it with `pip install 'streamworker[otel]'`.",
        ) from None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        _tell_off()
        return False
    return True


@cache
def _tell_off() -> None:
    """Tell once that nobody would get the spans."""
    get_logger("streamworker.tracing").warning(
        "tracing_is_off",
        reason="tracing=True, and this process has no TracerProvider",
        remedy="Set one before the worker starts, or run it by `opentelemetry-instrument` (docs: tracing).",
    )
