"""The options of a processor, as one value that travels from the decorator to whatever calls the function."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypedDict

from streamworker.core.data.archives import Archive, ArchiveLike
from streamworker.core.data.retention import Retention, RetentionLike
from streamworker.core.policies import Errors, Policies
from streamworker.core.rules import keep_kinds
from streamworker.core.units import Duration, duration_ms

Start = Literal["earliest", "latest"]
OrderedBy = Literal["key", "none"]
CONCURRENCY_MAX = 1_000
"""Maximum concurrent calls in one partition. Each is a task, and up to 32 times as many records are
repeated after a crash. For more concurrency, use more partitions."""


@dataclass(frozen=True, kw_only=True)
class ProcessorOptions:
    """What ``@app.processor`` was told; its docstring says what each option does."""

    name: str | None = None
    batch: int | None = None
    within: Duration = 0
    batch_bytes: int = 4 * 1024 * 1024
    errors: Errors | None = None
    timeout: Duration | None = None
    forward: bool | None = None
    output: type | None = None
    log_retention: RetentionLike | None = None
    log_archive: ArchiveLike | None = None
    log_metadata: bool = False
    concurrency: int = 1
    ordered_by: OrderedBy = "key"
    start: Start = "earliest"

    @cached_property
    def within_ms(self) -> int:
        """How long a batch waits for more records."""
        return duration_ms(self.within, "within")

    @cached_property
    def timeout_ms(self) -> int | None:
        """How long one call of the function may take."""
        return None if self.timeout is None else duration_ms(self.timeout, "timeout", least_ms=1)

    @cached_property
    def policies(self) -> Policies:
        """What is done about a record whose handling fails."""
        return Policies(self.errors)

    @cached_property
    def retention_of_log(self) -> Retention | None:
        """How long rows of the acked log stay after all readers have read them."""
        return None if self.log_retention is None else Retention.of(self.log_retention, "log_retention")

    @cached_property
    def archive_of_log(self) -> Archive | None:
        """Where the acked log is archived."""
        return None if self.log_archive is None else Archive.of(self.log_archive)


keep_kinds("Processor", ProcessorOptions.__annotations__, concurrency=(1, CONCURRENCY_MAX))


class Options(TypedDict, total=False):
    """The names and types of ``ProcessorOptions`` for type checkers: ``Unpack`` takes no dataclass."""

    name: str | None
    batch: int | None
    within: Duration
    batch_bytes: int
    errors: Errors | None
    timeout: Duration | None
    forward: bool | None
    output: type | None
    log_retention: RetentionLike | None
    log_archive: ArchiveLike | None
    log_metadata: bool
    concurrency: int
    ordered_by: OrderedBy
    start: Start
