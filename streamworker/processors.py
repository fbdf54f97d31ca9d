"""What the decorators declare: streams, processors and pipelines as plain values.

Nothing here connects to anything. ``app.py`` makes these values, ``runtime`` and ``spark``
read them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from streamworker.records import RecordType

OnError = Literal["halt", "dead_letter", "skip"]
Codec = Literal["json", "msgpack", "fields", "arrow"]
Start = Literal["earliest", "latest"]
OrderedBy = Literal["key", "none"]
Takes = Literal["records", "record_batch", "table", "polars"]
"""What a processor function is given: records, or columns as pyarrow or polars have them."""


class Mode(Enum):
    """How a processor function takes its records."""

    RECORD = "record"
    """One call a record."""
    BATCH = "batch"
    """One call a list of records, or their columns."""
    STREAM = "stream"
    """One call a partition; the function iterates over the records itself."""


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    """A logical stream: a record type, a key and a number of partitions."""

    app: str
    name: str
    record: RecordType
    key: Callable[[Any], object]
    """From a record to its key; ``None`` spreads the record round robin."""
    partitions: int
    codec: Codec
    entries_max: int
    """Entries a partition may hold before senders wait."""
    start: Start
    """Where a group that is new to the stream begins."""
    key_fields: str | tuple[str, ...] | None = None
    """The fields that ``key`` reads, for keys of tables; ``()`` for no key, None if ``key`` does not
    tell."""


@dataclass(frozen=True, kw_only=True)
class ProcessorSpec:
    """A processor: a function, the stream it reads, and how it is called."""

    name: str
    stream: StreamSpec
    function: Callable[..., Any]
    mode: Mode
    is_async: bool
    takes_context: bool
    batch: int
    """Records in one call at most (BATCH), or between two commits (RECORD, STREAM)."""
    takes: Takes = "records"
    within_ms: int
    """How long a batch waits for more records once it has one."""
    batch_bytes: int
    """Bytes of entries in one batch at most."""
    on_error: OnError
    """What happens to a record whose attempts are used up."""
    attempts: int
    backoff_ms: int
    """Pause before the second attempt; doubled for each further one, with jitter."""
    backoff_max_ms: int
    forward: bool
    """Whether acked rows go to the acked log."""
    output: RecordType | None
    """Type of the forwarded rows; the stream's own type where the records themselves are."""
    timeout_ms: int | None = None
    """How long one call of the function may take before it counts as failed."""
    concurrency: int = 1
    """Calls of a function that takes one record, in one partition at a time."""
    ordered_by: OrderedBy = "key"
    """Which records never overlap where several calls may run at a time."""

    @property
    def uses_columns(self) -> bool:
        """Whether the function takes columns, or its stream holds them."""
        return self.takes != "records" or self.stream.codec == "arrow"


@dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    """A Spark pipeline over what a processor forwards."""

    name: str
    processor: ProcessorSpec
    function: Callable[..., Any]
    trigger: str
    """``"10 seconds"`` for a micro-batch every so often, or ``"available now"``."""
    path: str | None
    format: str
    mode: Literal["append", "complete", "update"]
    checkpoint: str | None
    """Spark's checkpoint directory; beside ``path`` where none is given."""
    options: dict[str, str] = field(default_factory=dict)
