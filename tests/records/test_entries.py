"""Entries as a read brings them are the same as entries made one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.entries import Entry, EntryId
from streamworker.records.entries import Entries, joined_entries, sizes_of

NAMES = st.sampled_from([b"v", b"h.trace", b"other", b""])
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=5)), min_size=1, max_size=3)
READS = st.lists(FIELDS, max_size=6)


def reply_of(read: list[list[tuple[bytes, bytes]]]) -> list[list[object]]:
    """Return what Redis says: ids 7-0, 7-1, ... and the fields flat."""
    return [[b"7-%d" % n, [part for field in fields for part in field]] for n, fields in enumerate(read)]


def made_of(read: list[list[tuple[bytes, bytes]]]) -> list[Entry]:
    return [
        Entry(EntryId(7, n), dict(fields), sum(len(name) + len(value) for name, value in fields))
        for n, fields in enumerate(read)
    ]


@given(read=READS)
def test_what_is_made_when_it_is_looked_at_is_what_the_constructors_make(
    read: list[list[tuple[bytes, bytes]]],
) -> None:
    """Ids, fields and sizes; by index, by iteration, and from the end."""
    entries, made = Entries.of(reply_of(read)), made_of(read)
    assert entries == made and made == entries
    assert [entries[n] for n in range(len(entries))] == made
    assert (len(entries), sum(sizes_of(entries))) == (len(made), sum(sizes_of(made)))
    assert all(type(entry.id) is EntryId for entry in entries)
    if made:
        assert entries[-1] == made[-1]
        assert entries != made[:-1]
    with pytest.raises(IndexError):
        entries[len(made)]


@given(read=READS, start=st.integers(0, 6), end=st.integers(0, 6))
def test_slices_and_sums_are_those_of_a_list(
    read: list[list[tuple[bytes, bytes]]], start: int, end: int
) -> None:
    """A batch is cut from one read and continued from the next."""
    entries, made = Entries.of(reply_of(read)), made_of(read)
    part = entries[start:end]
    assert type(part) is Entries
    assert part == made[start:end]
    assert list(sizes_of(part)) == list(sizes_of(made[start:end]))
    both = joined_entries([entries[:start], entries[start:]])
    assert type(both) is Entries
    assert both == made
    assert joined_entries([entries[:start], made[start:]]) == made
    assert joined_entries([part]) is part
    assert joined_entries([]) == []


@given(read=READS)
def test_payloads_are_those_that_each_entry_alone_would_give(
    read: list[list[tuple[bytes, bytes]]],
) -> None:
    """Of a field that is there twice the last one counts; where any is elsewhere, nothing is said."""
    payloads = Entries.of(reply_of(read)).payloads(b"v")
    if payloads is not None:
        assert payloads == [entry.fields[b"v"] for entry in made_of(read)]
    elif read:
        assert any(fields[0][0] != b"v" or b"v" in dict(fields[1:]) for fields in read)
