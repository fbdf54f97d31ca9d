"""The quick way of sending a list says what the ordinary way says, or leaves the list to it."""

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker import App, Stream
from streamworker.records.codecs import Codec
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.send.producer import Producer
from streamworker.settings import Settings
from tests.helpers import drawn

NOBODY = Backend.open("redis://localhost:1/0", name="nobody")
"""Nothing is sent here."""


class Order(msgspec.Struct):
    """A record with all that the quick way has to leave to the other."""

    customer: str | None
    amount: float | None = None
    note: str = ""


class Special(Order):
    """As good as an order."""


@dataclass
class Plain:
    """A record of another kind."""

    customer: str | None
    amount: float | None = None
    note: str = ""


def producer(kind: type, partitions: int, codec: Codec, key: str | None = "customer") -> Producer:
    """Return one that deals records without a key from partition 0 on."""
    stream: Stream[Any] = App("shop").stream("orders", kind, key=key, partitions=partitions, codec=codec)
    settings = Settings(entry_bytes_max=1024)
    return Producer(NOBODY, stream.spec, settings, rng=cast(random.Random, Zero()))


class Zero(random.Random):
    """Chooses the first."""

    def randrange(self, *_: Any) -> int:
        """Return 0."""
        return 0


def ordinary(made: Producer, records: list[Any]) -> dict[int, list[bytes]]:
    """Encode and route one record after the other."""
    routed: defaultdict[int, list[bytes]] = defaultdict(list)
    for record in records:
        partition, payload, size = made.prepared(record, None)
        assert isinstance(payload, bytes) and size == len(payload)
        routed[partition].append(payload)
    return dict(routed)


def quick(made: Producer, records: list[Any]) -> dict[int, list[bytes]] | None:
    """Encode and route them together."""
    routed = made.quick.routed(records)
    if routed is None:
        return None
    found: defaultdict[int, list[bytes]] = defaultdict(list)
    for partition, payloads, size in routed:
        assert size >= sum(map(len, payloads))
        found[partition] += payloads
    return dict(found)


FIELDS = st.tuples(
    st.sampled_from(["ann", "böb", "", "\ud800", None]),
    st.sampled_from([1.5, None, float("nan"), float("inf")]),
    st.sampled_from(["", "null", "x" * 2000]),
)


@pytest.mark.parametrize(
    ("kind", "codec", "partitions"),
    [(Order, "json", 1), (Order, "msgpack", 5), (Plain, "json", 5), (Plain, "msgpack", 1)],
)
@drawn(60)
@given(fields=st.lists(FIELDS, max_size=5))
def test_what_the_quick_way_gives_is_what_the_ordinary_way_gives(
    kind: type, codec: Codec, partitions: int, fields: list[tuple[Any, ...]]
) -> None:
    """The same payloads in the same partitions and order; and nothing where one record is wrong."""
    records = [kind(*each) for each in fields]
    routed = quick(producer(kind, partitions, codec), records)
    if routed is not None:
        assert routed == ordinary(producer(kind, partitions, codec), records)


@pytest.mark.parametrize("key", ["customer", None])
def test_what_is_usual_goes_the_quick_way(key: str | None) -> None:
    """Or it would be of no use."""
    made = producer(Order, 5, "json", key)
    records = [Order(f"c{n}", n / 2, "null") for n in range(50)]
    assert quick(made, records) == ordinary(producer(Order, 5, "json", key), records)


@pytest.mark.parametrize(
    "odd",
    [
        Special("ann"),
        {"customer": "ann"},
        Order("ann", float("nan")),
        Order("ann", note="x" * 2000),
        Order(cast(str, 7)),
    ],
    ids=["subclass", "dict", "nan", "large", "number as key"],
)
def test_a_list_with_anything_unusual_is_left_to_the_ordinary_way(odd: Any) -> None:
    """Which names the record that is wrong, and sends those before it."""
    made = producer(Order, 5, "json")
    assert made.quick.routed([Order("ann"), odd]) is None
    assert made.quick.routed([Order("ann")]) is not None


def test_a_list_that_is_left_deals_no_partition() -> None:
    """Records without a key go on where the last list ended."""
    made = producer(Order, 5, "json", None)
    assert made.quick.routed([Order("a", float("nan"))]) is None
    assert list(quick(made, [Order("a")]) or ()) == [0]
