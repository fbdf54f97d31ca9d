"""When a partition is trimmed: not where it would be in vain, and in the end always."""

import pytest

from streamworker.redisio.data.trimming import ANY_AGE, Keep
from streamworker.runtime.run.trims import LEFT_OUT_MAX, NODE_BYTES, NODE_ENTRIES, Trims


def _trims() -> Trims:
    """Return the trims of a partition of which no retention keeps anything."""
    trims = Trims(interval_ms=0)
    trims.keep(0, Keep(), is_read=False)
    return trims


@pytest.mark.parametrize(("entries", "size"), [(NODE_ENTRIES, 0), (1, NODE_BYTES)])
def test_a_commit_trims_once_a_node_may_be_done(entries: int, size: int) -> None:
    """Entries or bytes: the server drops whole nodes, and either may end one."""
    trims = _trims()
    assert not trims.with_commit()
    trims.committed(entries, size)
    assert trims.with_commit()
    assert not trims.with_commit()


def test_a_commit_trims_now_and_then_whatever_there_is() -> None:
    """A server may be set to smaller nodes."""
    trims = _trims()
    trims.committed(1, 1)
    assert [trims.with_commit() for _ in range(LEFT_OUT_MAX + 1)] == [False] * LEFT_OUT_MAX + [True]


@pytest.mark.parametrize(
    ("interval_ms", "kept"),
    [(60_000, Keep()), (0, None), (0, Keep(ANY_AGE)), (0, Keep(events_ms=60_000))],
    ids=["before its time", "what retention may keep", "what is kept by number", "what is kept by age"],
)
def test_no_commit_trims_before_its_time_or_what_retention_keeps(interval_ms: int, kept: Keep | None) -> None:
    """However much there is. While a node of a Cluster is away, nobody knows what it keeps."""
    trims = Trims(interval_ms)
    if kept is not None:
        trims.keep(0, kept, is_read=False)
    trims.committed(1_000_000, 1_000_000)
    assert not trims.with_commit()


def test_a_partition_is_trimmed_apart_when_its_flow_has_ended_or_its_readers_move() -> None:
    """What its last commits did not drop goes then, and it is asked for once."""
    trims = _trims()
    asked = [trims.without_commit(0)]
    for rows in (0, 0, 7, 7):
        trims.committed(5, 50)
        asked.append(trims.without_commit(rows))
    asked += [trims.without_commit(7), trims.without_commit(7)]
    assert asked == [True, False, False, True, False, True, False]


def test_a_partition_with_much_flow_is_trimmed_apart_too() -> None:
    """A commit drops a thousand entries at most, which is less than a fast handler does meanwhile."""
    trims = _trims()
    asked = []
    for entries, size in ((NODE_ENTRIES, 0), (NODE_ENTRIES, 0), (1, NODE_BYTES), (1, 1)):
        trims.committed(entries, size)
        asked.append(trims.without_commit(0))
    assert asked == [True, True, True, False]
