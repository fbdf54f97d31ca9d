"""The ids of the current span. Nothing of OpenTelemetry is imported for them."""

import sys


def trace_ids() -> dict[str, str]:
    """Return the ids of the span that is current here, for a log line; nothing if there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    at = trace.get_current_span().get_span_context()
    return {"trace_id": f"{at.trace_id:032x}", "span_id": f"{at.span_id:016x}"} if at.is_valid else {}
