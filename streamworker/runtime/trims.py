"""When a partition is trimmed: as often as the settings say, and not where it would be in vain.

A trim asks the server for all groups of the stream. A thousand partitions that get little each were
trimmed a thousand times a second, a call each, and mostly had nothing to drop.
"""

from streamworker.runtime.clock import monotonic_ms

NODE_ENTRIES, NODE_BYTES = 100, 4096
"""What a node of a stream holds at most. A trim drops whole nodes, so with less than this committed since
the last one it is in vain."""
LEFT_OUT_MAX = 30
"""Trims that are left out in a row: a server may be set to smaller nodes."""


class Trims:
    """The trims of one partition while one runner has it.

    Parameters
    ----------
    interval_ms
        How far they are apart at least.

    Examples
    --------
    >>> trims = Trims(interval_ms=0)
    >>> trims.committed(99, 2000)
    >>> trims.with_commit()
    False
    >>> trims.committed(1, 20)
    >>> trims.with_commit()
    True
    """

    __slots__ = (
        "_at_ms",
        "_bytes",
        "_entries",
        "_interval_ms",
        "_known",
        "_left_out",
        "_seen",
        "_total",
        "_total_bytes",
    )

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._at_ms = monotonic_ms()
        self._left_out = 0
        self._entries = self._bytes = 0
        self._total = self._total_bytes = 0
        self._seen = (0, 0)
        self._known: tuple[int, int] | None = None

    def committed(self, entries: int, size: int) -> None:
        """Note a commit that was confirmed."""
        self._entries += entries
        self._bytes += size
        self._total += entries
        self._total_bytes += size

    def with_commit(self) -> bool:
        """Whether the next commit is to trim as well."""
        at_ms = monotonic_ms()
        if at_ms - self._at_ms < self._interval_ms:
            return False
        self._at_ms = at_ms
        in_vain = self._entries < NODE_ENTRIES and self._bytes < NODE_BYTES
        if in_vain and self._left_out < LEFT_OUT_MAX:
            self._left_out += 1
            return False
        self._left_out = self._entries = self._bytes = 0
        return True

    def without_commit(self, rows: int) -> bool:
        """Whether to trim without a commit; asked once an interval.

        What is committed to a little is trimmed by its commits, unless its readers have moved on. What
        has stopped is not any more, and what is committed to much needs more than its commits drop.

        Parameters
        ----------
        rows
            Rows of the acked log that every reader is past.
        """
        done = (self._total, self._total_bytes)
        if done == self._seen and self._known == (self._total, rows):
            return False  # Which a thousand idle partitions are asked every two seconds.
        entries, size = (now - before for now, before in zip(done, self._seen, strict=True))
        self._seen = done
        a_little = 0 < entries < NODE_ENTRIES and size < NODE_BYTES
        known = self._known
        if known is not None and known[1] == rows and (a_little or known[0] == self._total):
            return False
        self._known = (self._total, rows)
        return True
