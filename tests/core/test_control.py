"""Messages on the control stream."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core import control
from streamworker.core.control import (
    ControlMessage,
    GroupChanged,
    PartitionsAcquired,
    PartitionsReleased,
    StreamGrown,
)
from streamworker.core.protocols.lease.events import LeaseChallenged, LeaseEnded
from streamworker.core.protocols.membership.joining import JoinWanted
from streamworker.core.protocols.registry import MESSAGES, from_fields

generations = st.integers(min_value=0, max_value=2**53)
partitions = st.lists(st.integers(min_value=0, max_value=10_000), max_size=20).map(tuple)
messages: st.SearchStrategy[ControlMessage] = st.one_of(
    st.builds(GroupChanged, generations, st.text(), st.text(), partitions),
    st.builds(JoinWanted, st.text(), st.text()),
    st.builds(PartitionsReleased, partitions, st.text(), generations),
    st.builds(PartitionsAcquired, partitions, st.text(), generations),
    st.builds(LeaseChallenged, partitions, st.text(), generations),
    st.builds(LeaseEnded, partitions, st.text(), generations),
    st.builds(StreamGrown, st.text(), st.text()),
)


@given(messages)
def test_a_message_comes_back_as_it_was_sent(message: ControlMessage) -> None:
    """All kinds, with any names and any number of partitions."""
    assert from_fields(message.fields()) == message


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=MESSAGES)
def test_every_kind_has_fields_of_types_that_can_be_read(kind: type[ControlMessage]) -> None:
    """A field of any other type would make each message of the kind look like one of a later release."""
    assert {each.type for each in fields(kind)} <= control._READERS.keys()


@given(st.dictionaries(st.sampled_from(["kind", "generation", "cause", "member", "moved"]), st.text()))
def test_a_message_that_is_not_understood_is_passed_over(fields: dict[str, str]) -> None:
    """The stream is only a hint: whatever stands in it, nothing fails."""
    from_fields({**fields, "kind": "changed"})
    assert from_fields({**fields, "kind": "of-a-later-release"}) is None


@pytest.mark.parametrize("missing", ["kind", "generation", "partitions", "owner"])
def test_a_message_without_a_field_is_passed_over(missing: str) -> None:
    """Half a message is none."""
    fields = PartitionsReleased((1, 2), "w1.a", 7).fields()
    del fields[missing]
    assert from_fields(fields) is None


def test_fields_that_a_later_release_adds_do_not_matter() -> None:
    """Workers of two releases can share a group while one replaces the other."""
    message = PartitionsAcquired((3,), "w1.a", 7)
    assert from_fields({**message.fields(), "epoch": "12"}) == message


def test_a_message_reads_well_in_redis_cli() -> None:
    """People look at this stream: plain words and numbers."""
    assert GroupChanged(7, "join", "w2", (4, 5)).fields() == {
        "kind": "changed",
        "generation": "7",
        "cause": "join",
        "member": "w2",
        "moved": "4,5",
    }
