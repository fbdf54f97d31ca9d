"""What a running pipeline tells, as a plain value. Without pyspark."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamworker.errors import ConfigurationError
from streamworker.spark import offsets


@dataclass(frozen=True, slots=True)
class PipelineProgress:
    """One micro-batch of a pipeline, or the news that it has ended or starts again."""

    pipeline: str
    state: str
    """``running``, ``restarting``, ``stopped``, ``done`` (available now: all read) or ``failed``."""
    batch: int
    """Spark's number of the micro-batch; -1 before the first."""
    rows: int
    """Rows in it."""
    rows_per_s: float
    positions: Mapping[int, int]
    """Rows of each partition's log that the pipeline has processed."""
    lag_rows: Mapping[int, int]
    """Rows of each partition's log that wait."""
    seconds: float
    """How long the micro-batch took."""
    error: str = ""

    @property
    def lag(self) -> int:
        """Rows that wait, over all partitions."""
        return sum(self.lag_rows.values())


def from_event(pipeline: str, event: Any) -> PipelineProgress:
    """Read a progress event of Spark.

    Parameters
    ----------
    pipeline
        The pipeline's name.
    event
        ``query.lastProgress``; an object with attributes, or a mapping.
    """
    source = _get(event, "sources")[0]
    end = _offset(_get(source, "endOffset"))
    latest = _offset(_get(source, "latestOffset")) or end
    durations = _get(event, "durationMs") or {}
    return PipelineProgress(
        pipeline=pipeline,
        state="running",
        batch=int(_get(event, "batchId")),
        rows=int(_get(event, "numInputRows")),
        rows_per_s=float(_get(event, "processedRowsPerSecond") or 0),
        positions={p: position.rows for p, position in end.items()},
        lag_rows=offsets.lag(end, latest),
        seconds=float(durations.get("triggerExecution", 0)) / 1000,
    )


def _get(event: Any, name: str) -> Any:
    """Read a field of an event: classic Spark gives mappings, Connect gives objects."""
    if isinstance(event, Mapping):
        return event.get(name)
    return getattr(event, name)


def _offset(value: Any) -> dict[int, offsets.Position]:
    """Read an offset of a progress event, which is text in classic Spark."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    try:
        return offsets.from_json(value) if value else {}
    except ConfigurationError:
        return {}
