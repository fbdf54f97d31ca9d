"""What is wrong with a chain, and which of its segments may go."""

from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.archivelife import beyond_end, expired, faults_in, is_late, objects_a_day
from streamworker.core.data.archives import Footer
from streamworker.core.data.entries import ZERO, EntryId

sizes = st.lists(st.integers(1, 5), min_size=1, max_size=8)


def chain_of(counts: list[int]) -> list[Footer]:
    """Return footers of segments with so many records, one a millisecond."""
    found, end, total = list[Footer](), ZERO, 0
    for records in counts:
        first, last = EntryId(end.ms + 1, 0), EntryId(end.ms + records, 0)
        total += records
        found.append(Footer(end, first, last, records, total, "w1", 1))
        end = last
    return found


@given(sizes, st.data())
def test_a_chain_is_whole_until_a_segment_inside_is_gone(counts: list[int], data: st.DataObject) -> None:
    """From the old end any number may have expired; a gap is named once, with both of its sides."""
    links = chain_of(counts)
    assert faults_in(links, 0) == []
    assert faults_in(links[data.draw(st.integers(0, len(links) - 1)) :], 0) == []
    if len(links) > 2:
        at = data.draw(st.integers(1, len(links) - 2))
        (fault,) = faults_in(links[:at] + links[at + 1 :], 3)
        assert (fault.kind, fault.partition) == ("missing", 3)
        assert str(links[at].after) in fault.text and str(links[at].last) in fault.text


@given(sizes, st.data())
def test_erased_records_are_no_fault_and_other_counts_are(counts: list[int], data: st.DataObject) -> None:
    """Records that were deleted before they were archived make a count larger, which is no fault either."""
    links = chain_of(counts)
    at = data.draw(st.integers(0, len(links) - 1))
    gone = data.draw(st.integers(0, links[at].records))
    links[at] = links[at]._replace(records=links[at].records - gone, erased=gone)
    assert faults_in(links, 0) == []
    links[at] = links[at]._replace(records=links[at].records + 1)
    assert [fault.kind for fault in faults_in(links, 0)] == (["count"] if at else [])


@given(sizes, st.data())
def test_a_segment_that_begins_within_another_is_named(counts: list[int], data: st.DataObject) -> None:
    """As one of a second chain would."""
    links = chain_of(counts)
    at = data.draw(st.integers(0, len(links) - 1))
    within = links[at]
    if within.records > 1:
        stray = within._replace(after=within.first, first=within.last)
        found = faults_in([*links[: at + 1], stray, *links[at + 1 :]], 0)
        assert [each.kind for each in found] == ["overlap"]


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(0, 9))
def test_what_expires_is_old_and_a_prefix_and_never_all(times: list[int], before: int) -> None:
    """The next one is young, or the last."""
    old = expired(times, before)
    assert old < len(times) and all(each < before for each in times[:old])
    assert old == len(times) - 1 or times[old] >= before


def test_an_end_below_the_checkpoint_is_a_fault() -> None:
    """Also of no chain at all; nothing archived is none."""
    assert beyond_end(ZERO, None, 0) is None
    found = beyond_end(EntryId(5, 0), None, 2)
    assert found is not None and found.line.startswith("Partition 2: ")
    assert beyond_end(EntryId(5, 0), EntryId(6, 0), 0) is None


def test_objects_and_lateness_follow_the_interval() -> None:
    """An interval that does not divide a day begins one more."""
    assert (objects_a_day(1_024, 600_000), objects_a_day(1, 86_399_999)) == (147_456, 2)
    assert is_late(31, 10, 0) and not is_late(30, 10, 0) and not is_late(31, 10, 1)
