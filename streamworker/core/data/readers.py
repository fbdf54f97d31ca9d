"""The position of a reader of the acked logs, and its stored form.

A reader writes its own position: Spark's driver writes the offsets before which it will not read again.
Workers read all of them, since trimming waits for the slowest reader.
"""

from collections.abc import Mapping

import msgspec


class ReaderPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position of one reader; its stored form is JSON.

    Examples
    --------
    >>> ReaderPosition({0: 7}, {0: "n.1"}, 99).text()
    '{"p":{"0":7},"log":{"0":"n.1"},"at":99}'
    """

    rows: Mapping[int, int] = msgspec.field(name="p")
    """Partition to the rows of its acked log that the reader has read."""
    logs: Mapping[int, str] = msgspec.field(name="log")
    """Partition to the identity of the log that those rows were counted in."""
    at_ms: int = msgspec.field(name="at")
    """When the reader wrote the position."""
    begins: bool = False
    """Whether the reader has read nothing yet."""

    def text(self) -> str:
        """Return the stored form."""
        return msgspec.json.encode(self).decode()


def read_position(text: str | bytes) -> ReaderPosition:
    """Parse a stored position.

    One that cannot be parsed counts as one at the beginning: trimming too little is noticed and can be
    corrected.
    """
    try:
        return msgspec.json.decode(text, type=ReaderPosition)
    except (ValueError, RecursionError):
        return ReaderPosition({}, {}, 0)
