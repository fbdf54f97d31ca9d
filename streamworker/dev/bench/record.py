"""The record that all contestants handle: small JSON, as most events are."""

from collections.abc import Iterator

import msgspec


class Event(msgspec.Struct):
    """One record.

    Examples
    --------
    >>> msgspec.json.encode(Event(1, "k1", 1.5))
    b'{"number":1,"key":"k1","amount":1.5,"sent_ns":0}'
    """

    number: int
    key: str
    amount: float
    sent_ns: int = 0
    """Time of the send by the machine's monotonic clock; 0 unless latency is measured."""


def events(count: int, *, keys: int = 1000, first: int = 0) -> Iterator[Event]:
    """Make records whose keys take turns."""
    return (Event(n, f"customer-{n % keys}", n * 0.25) for n in range(first, first + count))


def payloads(count: int, *, keys: int = 1000, first: int = 0) -> Iterator[bytes]:
    """Make records as they are stored in Redis."""
    encode = msgspec.json.Encoder().encode
    return map(encode, events(count, keys=keys, first=first))
