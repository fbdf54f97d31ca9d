"""The position of a reader of the acked logs, and its stored form.

A reader writes its own position: Spark's driver writes the offsets before which it will not read again.
Workers read all of them, since trimming waits for the slowest reader. A batch read, which has no reader
name, writes its start as a **hold**: a position with a time limit. The module travels to Spark Connect
servers, so it imports the standard library only.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

HOLD_MS = 60_000
"""How long workers respect a hold that is not renewed. Tasks renew it three times as often; the time also
covers tasks that wait for a free core."""


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """The position of one reader."""

    rows: Mapping[int, int]
    """Partition to the rows of its acked log that the reader has read."""
    logs: Mapping[int, str]
    """Partition to the identity of the log that those rows were counted in."""
    at_ms: int
    """When the reader wrote the position."""
    begins: bool = False
    """Whether the reader has read nothing yet."""
    late_rows: int = 0
    """Rows that were trimmed before the reader began, though it was to read all that there are."""
    failed: str = ""
    """Why its query failed since, in the words of the driver; it stays until the query has read on."""
    failed_ms: int = 0
    """When it failed."""
    batch_ms: int = 0
    """From the plan of its last micro-batch with rows to the next plan; 0 if that is not known."""
    dropped_rows: int = 0
    """Rows that its query dropped, since they came after its watermark; the driver adds them up."""
    until_ms: int = 0
    """When a hold ends, by the server's clock; 0 for the position of a named reader, which does not end."""

    def holds(self, now_ms: int) -> bool:
        """Return whether a hold is in force. One that ends too late was written before a clock went back."""
        return 0 < self.until_ms - now_ms <= 2 * HOLD_MS

    def text(self) -> str:
        """Return the stored form.

        >>> ReaderPosition({0: 7}, {0: "n.1"}, 99).text()
        '{"p":{"0":7},"log":{"0":"n.1"},"at":99}'
        """
        fields = {
            "p": {str(p): rows for p, rows in sorted(self.rows.items())},
            "log": {str(p): log for p, log in sorted(self.logs.items())},
            "at": self.at_ms,
        }
        rest = {
            "begins": self.begins,
            "late": self.late_rows,
            "failed": self.failed,
            "failed_at": self.failed_ms,
            "took": self.batch_ms,
            "dropped": self.dropped_rows,
            "until": self.until_ms,
        }
        return json.dumps(
            fields | {name: value for name, value in rest.items() if value}, separators=(",", ":")
        )


def read_position(text: str | bytes) -> ReaderPosition:
    """Parse a stored position.

    One that cannot be parsed counts as one at the beginning: trimming too little is noticed and can be
    corrected.
    """
    try:
        fields = json.loads(text)
        return ReaderPosition(
            {int(p): int(rows) for p, rows in fields["p"].items()},
            {int(p): str(log) for p, log in fields["log"].items()},
            int(fields["at"]),
            fields.get("begins") is True,
            int(fields.get("late", 0)),
            str(fields.get("failed", "")),
            int(fields.get("failed_at", 0)),
            int(fields.get("took", 0)),
            int(fields.get("dropped", 0)),
            int(fields.get("until", 0)),
        )
    except (ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError):
        return ReaderPosition({}, {}, 0)
