"""An archive: what a user declares of it, how its segments are named, and what their chain says.

A segment holds the records of one partition between two ids. Its name is the id after which it begins, so the
name of the next one follows from the chain alone, and the store takes a name once. So each link is made once,
whoever tries, and there is neither a manifest nor a lock. Of an acked log, whose ids count rows, the id is
``rows-0``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from streamworker.core.data.entries import EntryId
from streamworker.core.units import Duration, Size, duration_ms, duration_text, size_bytes, size_text
from streamworker.errors import ConfigurationError

GROUP = "archive"
"""The name of the group, and of the reader of acked logs, that archives; no processor may have it."""
IDENTITY = "_stream.json"
"""The object that says whose archive it is."""
COLUMNS = ("_time", "_seq", "_headers", "_payload", "_entry")
"""The columns of a segment beside those of the record."""
LOG_COLUMNS = ("_partition", "_offset", "_acked_at", "_entry_id", "_epoch", "_key", "_sent_at", "_headers")
"""The columns of a segment of an acked log beside those of the rows; the last three with ``log_metadata``."""

STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
"""Schemes of URLs of object stores."""
_SCHEMES = (*STORES, "file", "memory")
_NAME = re.compile(r"partition=(\d{1,9})/(\d{20})-(\d{20})\.parquet")


@dataclass(frozen=True)
class Archive:
    """Where a stream or an acked log is archived, and how.

    Parameters
    ----------
    url
        ``s3://bucket/path``, ``gs://``, ``az://``, or a folder. Credentials come from the environment
        (``AWS_*``, ``GOOGLE_*``, ``AZURE_*``), never from the URL.
    every
        How old the oldest record of a partition gets before a segment is written.
    size
        How much of a partition waits at most before a segment is written, in bytes of the records.
    after
        Nothing younger is archived: what a failover loses in that time is lost in both.
    columns
        Whether a segment has the record's fields as columns beside its payload.
    keep
        How long segments stay; None for ever. See ``streamworker archive expire``.

    Raises
    ------
    ConfigurationError
        If the URL has no scheme that is known, or a duration or size is none.

    Examples
    --------
    >>> str(Archive("s3://lake/orders", keep="2 years"))
    's3://lake/orders every 10 minutes or 64 MB, after 1 minute, kept 2 years'
    """

    url: str
    every: Duration = "10 minutes"
    size: Size = "64 MB"
    after: Duration = "1 minute"
    columns: bool = True
    keep: Duration | None = None

    def __post_init__(self) -> None:
        _ = self.every_ms, self.size_bytes, self.after_ms, self.keep_ms
        if not self.url:
            raise ConfigurationError(f"archive={self.url!r} is no URL.", remedy=_URLS)
        scheme, has_scheme, rest = self.url.partition("://")
        if has_scheme and (scheme not in _SCHEMES or not rest):
            raise ConfigurationError(f"archive={self.url!r} is of no store that is known.", remedy=_URLS)
        if has_secrets(self.url):
            raise ConfigurationError("archive= has credentials in its URL.", remedy=CREDENTIALS)

    @classmethod
    def of(cls, value: "Archive | str") -> "Archive":
        """Return an archive from what a user wrote: an archive, or its URL."""
        return value if isinstance(value, Archive) else cls(value)

    @property
    def every_ms(self) -> int:
        """``every`` in ms."""
        return duration_ms(self.every, "every", least_ms=100)

    @property
    def size_bytes(self) -> int:
        """``size`` in bytes."""
        return size_bytes(self.size, "size")

    @property
    def after_ms(self) -> int:
        """``after`` in ms."""
        return duration_ms(self.after, "after")

    @property
    def keep_ms(self) -> int | None:
        """``keep`` in ms; None for ever."""
        return None if self.keep is None else duration_ms(self.keep, "keep", least_ms=1_000)

    def __str__(self) -> str:
        kept = "" if self.keep_ms is None else f", kept {duration_text(self.keep_ms)}"
        often = f"every {duration_text(self.every_ms)} or {size_text(self.size_bytes)}"
        return f"{self.url} {often}, after {duration_text(self.after_ms)}{kept}"


CREDENTIALS = "Put them into the environment: AWS_*, GOOGLE_* or AZURE_*."


def has_secrets(url: str) -> bool:
    """Return whether a URL has credentials: a user, or a query, in which Azure signs.

    >>> has_secrets("s3://key:secret@lake/x"), has_secrets("az://lake/x?sig=secret")
    (True, True)
    >>> has_secrets("abfss://lake@account.dfs.core.windows.net/x"), has_secrets("lake@home/x")
    (False, False)
    """
    scheme, has_scheme, rest = url.partition("://")
    user, has_user, _ = rest.partition("/")[0].rpartition("@")
    names_container = scheme.startswith("abfs") and ":" not in user
    return bool(has_scheme) and scheme != "file" and ("?" in rest or (bool(has_user) and not names_container))


_URLS = "Write s3://bucket/path, gs://bucket/path, az://container/path, or a folder."

ArchiveLike = Archive | str
"""An ``Archive``, or its URL."""


def name_of(partition: int, after: EntryId) -> str:
    """Return the name of the segment of a partition that begins after an id.

    >>> name_of(3, EntryId(1795876651099, 17))
    'partition=3/00000001795876651099-00000000000000000017.parquet'
    """
    return f"partition={partition}/{after.ms:020d}-{after.seq:020d}.parquet"


def after_of(name: str) -> EntryId | None:
    """Return the id after which a segment begins, by its name; None for an object of somebody else."""
    found = _NAME.fullmatch(name)
    return EntryId(int(found[2]), int(found[3])) if found else None


class Footer(NamedTuple):
    """What a segment says of itself."""

    after: EntryId
    """The last record before the segment, which its name says, too."""
    first: EntryId
    last: EntryId
    """Its first and its last record; also after records were erased."""
    records: int
    """Records in it."""
    total: int
    """Records that the stream ever had up to ``last``."""
    owner: str
    epoch: int
    """Who wrote it."""
    log: str = ""
    """Of an acked log its identity; an archive of another one is no part of it."""
    erased: int = 0
    """Records that were erased from it."""
    tail: str = ""
    """Of an acked log the last source entry and the epoch of the commit with its last row."""

    def fields(self) -> dict[str, str]:
        """Return it as texts."""
        return {name: str(value) for name, value in self._asdict().items()}

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Self:
        """Return it from its texts; raises ConfigurationError, KeyError or ValueError for others."""
        after, first, last = (EntryId.parse(fields[name]) for name in ("after", "first", "last"))
        records, total = int(fields["records"]), int(fields["total"])
        its = fields["owner"], int(fields["epoch"]), fields.get("log", ""), int(fields.get("erased", "0"))
        return cls(after, first, last, records, total, *its, fields.get("tail", ""))


def start_in(afters: Sequence[EntryId], position: EntryId) -> int | None:
    """Return which of some segments, in order, has the record after a position; None if none can have it.

    >>> start_in([EntryId(5, 0), EntryId(9, 0)], EntryId(7, 3)), start_in([EntryId(5, 0)], EntryId(4, 0))
    (0, None)
    """
    at = [index for index, after in enumerate(afters) if after <= position]
    return at[-1] if at else None
