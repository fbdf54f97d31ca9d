"""Progress of a pipeline as a plain value. Imports no pyspark."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamworker.errors import ConfigurationError
from streamworker.spark.source import offsets


@dataclass(frozen=True, slots=True)
class PipelineProgress:
    """The progress after one micro-batch of a pipeline, or a change of its state."""

    pipeline: str
    state: str
    """``running``, ``waiting`` (for the stream's declaration, or for room in the stream that it sends to),
    ``restarting``, ``stopped``, ``done`` (all rows are read) or ``failed``."""
    batch: int = -1
    """Spark's number of the micro-batch; -1 before the first."""
    rows: int = 0
    """Rows in the micro-batch."""
    rows_per_s: float = 0.0
    positions: Mapping[int, int] = field(default_factory=dict)
    """Rows of each partition's log that the pipeline has processed; of several processors, the sum."""
    lag_rows: Mapping[int, int] = field(default_factory=dict)
    """Rows of each partition's log that the pipeline has not read; empty if Spark did not look, since it
    repeated a batch."""
    seconds: float = 0.0
    """How long the micro-batch took."""
    late_rows: int = 0
    """In the first micro-batch: rows before it, which were trimmed or left out by ``startingOffsets``."""
    dropped_rows: int = 0
    """Rows that came after the watermark, so Spark dropped them; since the start of this driver. Spark counts
    the rows that reach an aggregate, a join or a search for duplicates: of an aggregate those of a group in
    a task are one."""
    error: str = ""

    @property
    def lag(self) -> int | None:
        """Return the number of unread rows over all partitions; None if it is not known."""
        return sum(self.lag_rows.values()) if self.lag_rows else None


def from_event(pipeline: str, event: Any) -> PipelineProgress:
    """Convert ``query.lastProgress``, by its attributes: an event of a remote Spark has no items."""
    positions, lag_rows = Counter[int](), Counter[int]()
    for source in event.sources:
        end = _offset(source.endOffset)
        positions.update({p: position.rows for p, position in end.items()})
        lag_rows.update(offsets.lag(end, _offset(source.latestOffset)))
    rows = sum(int(source.numInputRows) for source in event.sources)
    return PipelineProgress(
        pipeline=pipeline,
        state="running",
        batch=int(event.batchId),
        rows=rows,
        rows_per_s=float(event.processedRowsPerSecond or 0),
        positions=positions,
        lag_rows=lag_rows,
        late_rows=max(0, positions.total() - rows) if int(event.batchId) == 0 else 0,
        dropped_rows=sum(int(each.numRowsDroppedByWatermark) for each in event.stateOperators),
        seconds=float((event.durationMs or {}).get("triggerExecution", 0)) / 1000,
    )


def _offset(value: Any) -> dict[int, offsets.Position]:
    """Parse an offset of a progress event, which is text in classic Spark; return none if it is not ours."""
    try:
        document = json.loads(value) if isinstance(value, str) else value
        return offsets.from_json(document) if document else {}
    except (ConfigurationError, ValueError):
        return {}
