"""A key has one partition in each generation of a stream, and a partition has one parent or two."""

import zlib
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.placement import Placement, RoundRobin, canonical_key

GROWN = (8, 12, 25, 64)
VECTORS: list[tuple[object, tuple[int, ...]]] = [
    ("ann", (3, 13, 30, 72)),
    ("bob", (0, 9, 22, 50)),
    ("", (0, 8, 20, 45)),
    ("tea", (2, 12, 28, 67)),
    ("Zoë", (2, 11, 27, 63)),
    (("ann", 7), (1, 9, 23, 53)),
    ("customer-42", (5, 16, 37, 90)),
    (0, (1, 10, 25, 59)),
    ("9f86d081", (3, 12, 29, 69)),
]
counts = st.lists(st.integers(1, 300), min_size=1, max_size=4).map(lambda its: tuple(accumulated(its)))


def accumulated(steps: list[int]) -> list[int]:
    """Return counts that only grow."""
    return [sum(steps[: n + 1]) for n in range(len(steps))]


@pytest.mark.parametrize(("key", "partitions"), VECTORS)
def test_the_published_vectors_hold(key: object, partitions: tuple[int, ...]) -> None:
    """Each key has the partition that the page says, in each of four generations."""
    data = canonical_key(key)
    assert data is not None
    for n, partition in enumerate(partitions, 1):
        assert Placement(*GROWN[:n]).partition_of(data) == partition


@given(counts, st.binary())
def test_a_key_moves_from_a_parent_to_its_child(its: tuple[int, ...], key: bytes) -> None:
    """And in the first generation it has the partition that it would have in a stream that never grew."""
    placed = [Placement(*its[:n]).partition_of(key) for n in range(1, len(its) + 1)]
    placement = Placement(*its)
    assert placed[0] == zlib.crc32(key) % its[0]
    for older, newer in pairwise(placed):
        assert older in placement.parents_of(newer)
    assert placed[-1] in placement.active
    assert placement.ancestors_of(placed[-1]) >= {*placed[:-1]}
    assert placement.path_of(key) == tuple(placed)


@given(counts)
def test_a_partition_has_one_parent_or_two_and_each_has_a_child(its: tuple[int, ...]) -> None:
    """Parents have lower numbers; only the first generation has none."""
    placement = Placement(*its)
    for partition in placement.all:
        parents = placement.parents_of(partition)
        assert len(parents) in ((0,) if partition < its[0] else (1, 2))
        assert all(parent < partition for parent in parents)
    with_child = {parent for partition in placement.all for parent in placement.parents_of(partition)}
    assert with_child == {*range(placement.base)}


@given(counts, st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_many_texts_have_the_partitions_that_each_has(its: tuple[int, ...], texts: list[str]) -> None:
    """And none of them, if one is no text, or none that UTF-8 can hold."""
    placement = Placement(*its)
    assert placement.partitions_of_texts(texts) == [placement.partition_of(text.encode()) for text in texts]
    for odd in (7, None, b"ann", "\ud800"):
        assert placement.partitions_of_texts([*texts, odd]) is None


@pytest.mark.parametrize("grown", [(8, 12), (20, 25), (8, 12, 25, 64)])
def test_keys_are_spread_evenly_over_the_active_partitions(grown: tuple[int, ...]) -> None:
    """The fullest of them has a fifth more than the mean of 100,000 keys at most."""
    placement = Placement(*grown)
    found = Counter(placement.partition_of(b"%d" % n) for n in range(100_000))
    assert {*found} == {*placement.active}
    assert max(found.values()) < 1.2 * 100_000 / placement.live


def test_records_without_a_key_go_to_the_active_partitions_in_turn() -> None:
    """None goes to an old one."""
    deal, placement = RoundRobin(5), Placement(2, 3)
    assert [deal.next(placement.active) for _ in range(6)] == [4, 2, 3, 4, 2, 3]
