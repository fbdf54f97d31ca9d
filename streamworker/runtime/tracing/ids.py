"""The ids of spans, for log lines. Nothing of OpenTelemetry is imported for them."""

import sys


def trace_ids() -> dict[str, str]:
    """Return the ids of the span that is current here, for a log line; nothing if there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    at = trace.get_current_span().get_span_context()
    return {"trace_id": f"{at.trace_id:032x}", "span_id": f"{at.span_id:016x}"} if at.is_valid else {}


def note_trace_ids(error: BaseException) -> None:
    """Note at an error in which span it was raised; lines about it are logged when that span has ended."""
    vars(error)["streamworker_trace_ids"] = trace_ids()


def noted_trace_ids(error: BaseException) -> dict[str, str]:
    """Return the ids of the span in which an error was raised; nothing if it had none."""
    ids: dict[str, str] = vars(error).get("streamworker_trace_ids", {})
    return ids
