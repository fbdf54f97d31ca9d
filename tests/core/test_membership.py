"""The membership document."""

import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.protocols.membership.assignment import STRATEGIES
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.errors import ConfigurationError, CoordinationError
from tests.core.workbench import group, stored

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
some_members = st.lists(
    st.builds(Member, names, names, names, st.integers(0, 2**22), st.integers(0, 2**53)),
    max_size=10,
    unique_by=lambda member: member.id,
)
steps = st.lists(st.tuples(st.sampled_from(["leaving", "without"]), st.integers(0, 9)), max_size=6)


def evolve(members: list[Member], changes: list[tuple[str, int]], partitions: int) -> Membership:
    membership = Membership.empty(partitions, "range")
    for member in members:
        membership = membership.with_member(member)
    for change, index in changes:
        if index < len(members):
            who = members[index].id
            membership = membership.with_leaving(who) if change == "leaving" else membership.without([who])
    return membership


memberships = st.builds(evolve, some_members, steps, st.integers(1, 40))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def damaged(**fields: object) -> bytes:
    """Return a good document in which some fields are something else."""
    good = json.loads(stored(group("a.1", "b.1", partitions=2)))
    return json.dumps({**good, **fields}, separators=(",", ":")).encode()


@given(memberships, st.integers(1, 2**53))
def test_a_document_comes_back_as_it_was_written(membership: Membership, generation: int) -> None:
    """All of it, with the generation that the script puts in front of the body, in the first 64 bytes.

    The heartbeat's script reads no more of a document of any length. Each owner is an active member: a
    partition lies idle only where nobody is left to work.
    """
    written = replace(membership, generation=generation)
    assert written.body() == membership.body()
    assert stored(written)[:64].startswith(b'{"generation":%d,' % generation)
    assert Membership.parse(stored(written)) == written
    active: set[str | None] = {member.id for member in membership.members if member.state == "active"}
    assert len(membership.owners) == membership.partitions
    assert set(membership.owners) <= (active or {None})


@given(st.binary() | st.text().map(str.encode) | json_values.map(lambda value: json.dumps(value).encode()))
def test_a_key_that_somebody_else_wrote_is_refused_as_such(document: bytes) -> None:
    """Whatever it holds: one error, with what to do."""
    with pytest.raises(CoordinationError) as caught:
        Membership.parse(document)
    assert caught.value.remedy


@given(
    st.sampled_from(["generation", "partitions", "strategy", "members", "owners", "v"]),
    json_values,
)
def test_a_document_with_one_wrong_field_is_read_or_refused(name: str, value: object) -> None:
    """Never another error than the one that callers expect."""
    with suppress(CoordinationError):
        read = Membership.parse(damaged(**{name: value}))
        assert len(read.owners) == read.partitions


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(b"[" * 100_000, id="nested too deep"),
        pytest.param(damaged(generation=float("inf")), id="infinite"),
        pytest.param(damaged(partitions=float("nan")), id="not a number"),
        pytest.param(damaged(owners=[0, -1]), id="owner before the first"),
        pytest.param(damaged(owners=[0, 2]), id="owner after the last"),
        pytest.param(damaged(owners=[0]), id="too few owners"),
        pytest.param(damaged(owners=[0, 1, 1]), id="too many owners"),
        pytest.param(damaged(strategy="of-a-later-release"), id="unknown assignment"),
        pytest.param(damaged(owners=[None] * 2), id="nobody owns"),
        pytest.param(damaged(owners=[True] * 2), id="owners that are no numbers"),
        pytest.param(damaged(members=[]), id="no members"),
        pytest.param(damaged(generation=0), id="no generation"),
        pytest.param(damaged(generation=11.0), id="a broken generation"),
        pytest.param(damaged(partitions="2"), id="partitions in words"),
        pytest.param(damaged(weights=[0.5] * 2), id="broken weights"),
        pytest.param(json.dumps(json.loads(damaged())).encode(), id="spaces before the generation"),
        pytest.param(b'{"v":1,' + damaged()[1:], id="a generation that is not first"),
    ],
)
def test_a_document_that_cannot_be_acted_on_is_refused(document: bytes) -> None:
    """A worker keeps what it has rather than guess."""
    with pytest.raises(CoordinationError):
        Membership.parse(document)


def test_a_document_of_another_format_names_both_formats() -> None:
    """The usual cause is two releases in one group."""
    with pytest.raises(CoordinationError, match=r"format 3.*knows 2.*same release"):
        Membership.parse(damaged(v=3))


def test_an_assignment_that_does_not_exist_is_refused_before_anything_is_written() -> None:
    """The error lists those that do."""
    with pytest.raises(ConfigurationError, match=r"'best'.*range"):
        Membership.empty(4, "best")


def test_a_member_that_leaves_or_is_removed_gives_its_partitions_to_the_others() -> None:
    """In join order. Who leaves still is a member: nobody takes its locks before it has released them."""
    leaving = group("a.1", "b.1").with_leaving("a.1")
    assert (leaving.ids, leaving.owners) == (("a.1", "b.1"), ("b.1",) * 8)
    assert leaving.owned_by("a.1") == frozenset()
    removed = group("a.1", "b.1", "c.1").without(["b.1"])
    assert (removed.ids, removed.owners) == (("a.1", "c.1"), ("a.1",) * 4 + ("c.1",) * 4)


def test_who_joins_a_weighted_group_is_given_its_share_of_the_work_and_not_of_the_partitions() -> None:
    """By the weights that were measured: what lies beside the hot partition goes to the newcomer."""
    alone = Membership.empty(8, "weighted").with_member(Member("a.1", "a", "host", 1, 0))
    measured = alone.with_weights((1_000, *[100] * 7))
    joined = measured.with_member(Member("b.1", "b", "host", 1, 1))
    assert joined.owned_by("b.1") == set(range(1, 8))


def test_each_change_may_be_made_twice() -> None:
    """A join whose answer was lost may be tried again; somebody else may have removed a member already."""
    membership = group("a.1")
    member = membership.get("a.1")
    assert member is not None
    for again in (
        membership.with_member(member),
        membership.without(["b.1"]),
        membership.with_leaving("b.1"),
    ):
        assert again == membership


def test_a_document_is_small() -> None:
    """Every worker reads all of it after each change: 100 members fit into 16 KiB."""
    membership = group(*(f"worker-{n}.0123456789" for n in range(100)), partitions=1_000)
    assert len(stored(membership)) < 16 * 1024


# -- static members ------------------------------------------------------------------------------

statics = st.integers(2, 8)


def member_named(name: str, start: int) -> Member:
    """Return a static member as it is after so many starts."""
    return Member(f"{name}.{start}", name, "host", 1, 0, static_id=name)


def static_group(n: int, partitions: int, strategy: str) -> Membership:
    membership = Membership.empty(partitions, strategy)
    for rank in range(n):
        membership = membership.with_member(member_named(f"w{rank}", 0))
    return membership


def by_seat(membership: Membership) -> list[str | None]:
    """Return the name of the owner of each partition, which is the same after a restart."""
    return [owner and owner.partition(".")[0] for owner in membership.owners]


@given(statics, st.integers(1, 64), st.sampled_from(sorted(STRATEGIES)), st.data())
def test_a_rolling_restart_of_static_members_gives_no_partition_to_another(
    n: int, partitions: int, strategy: str, data: st.DataObject
) -> None:
    """In any order, by leave or by death, and with several away at once."""
    membership = static_group(n, partitions, strategy)
    before = by_seat(membership)
    todo = data.draw(st.permutations(range(n)))
    away: list[int] = []
    while todo or away:
        if todo and (not away or data.draw(st.booleans())):
            away.append(todo.pop())
            name = f"w{away[-1]}"
            if data.draw(st.booleans()):
                membership = membership.with_leaving(f"{name}.0")
                assert by_seat(membership) == before
            after = membership.with_gone([f"{name}.0"], 1_000)
        else:
            after = membership.with_member(member_named(f"w{away.pop(0)}", 1))
        assert membership.moved(after) == ()
        assert by_seat(after) == before
        membership = after
    assert membership.owners == tuple(f"{name}.1" for name in before)


@given(statics, st.integers(1, 64), st.sampled_from(sorted(STRATEGIES)))
def test_what_is_parked_is_given_to_nobody_and_all_of_it_when_the_hold_is_over(
    n: int, partitions: int, strategy: str
) -> None:
    """A join meanwhile shares the rest; the first member removes the seat, the others wait."""
    membership = static_group(n, partitions, strategy).with_gone(["w0.0"], 1_000)
    parked = membership.owned_by("w0.0")
    membership = membership.with_member(member_named("newcomer", 0))
    assert membership.owned_by("w0.0") == parked
    assert membership.expired(999, "w1.0", 500) == ()
    assert membership.expired(1_000, "w1.0", 500) == ("w0.0",)
    assert membership.expired(1_000, "newcomer.0", 500) == ()
    after = membership.without(["w0.0"])
    assert parked <= set(membership.moved(after))
    assert None not in after.owners


def test_a_held_seat_comes_back_as_it_was_written() -> None:
    """With its static id and the end of its hold."""
    membership = static_group(2, 4, "sticky").with_gone(["w0.0"], 1_700_000_030_000)
    membership = replace(membership, generation=7)
    read = Membership.parse(stored(membership))
    assert read == membership
    assert read.ids == ("w0.0", "w1.0") and read.present_ids == ("w1.0",)


# -- the stream grows --------------------------------------------------------------------------


def test_a_stream_that_never_grew_has_the_document_of_the_releases_before() -> None:
    """Byte for byte; once it has grown, the format is one that those releases leave alone."""
    alone = Membership.empty(2, "range").with_member(Member("a.1", "a", "host", 1, 5))
    before = (
        '{"v":1,"partitions":2,"strategy":"range","members":[{"id":"a.1","name":"a","host":"host","pid":1,'
        '"joined_ms":5,"state":"active"}],"owners":[0,0]}'
    )
    assert alone.body() == before
    assert alone.with_active(range(5)).body() == (
        before.replace('"v":1,"partitions":2', '"v":2,"partitions":5').replace(
            "[0,0]}", '[0,0,0,0,0],"first":0}'
        )
    )
    assert '"owners":[0,0,0],"first":2}' in alone.with_active(range(2, 5)).body()


looked = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=9)


@given(st.sampled_from(list(STRATEGIES)), looked)
def test_whatever_the_group_works_on_is_owned_and_nothing_else(
    strategy: str, looks: list[tuple[int, int]]
) -> None:
    """By equal shares, under each assignment, while members come; and the document can be read."""
    now = Membership.empty(4, strategy).with_weights((7, 0, 1, 2) if strategy == "weighted" else ())
    for number, (first, more) in enumerate([(0, 0), *looks]):
        total = now.partitions + more
        now = now.with_active(range(min(first, total - 1), total))
        now = now.with_member(Member(f"m.{number}", "m", "host", 1, 1))
        counts = Counter(now.owners[p] for p in now.active)
        assert set(now.owners[: now.active.start]) <= {None} and None not in counts
        if strategy != "weighted":
            assert max(counts.values()) - min(counts[each] for each in now.ids) <= 1
        written = now.body().encode()
        assert Membership.parse(b'{"generation":7,' + written[1:]) == replace(now, generation=7)


def test_the_range_assignment_begins_with_the_first_partition_that_the_group_works_on() -> None:
    """And a partition that it works on again is shared out like a new one."""
    both = group("a.1", "b.1", partitions=8).with_active(range(8, 20))
    assert both.owners == (*(None,) * 8, *("a.1",) * 6, *("b.1",) * 6)
    again = both.with_active(range(20))
    assert again.owners == (*("a.1",) * 10, *("b.1",) * 10)
    assert again == group("a.1", "b.1", partitions=8).with_active(range(20))


def test_a_place_that_is_held_keeps_no_partition_that_the_group_no_longer_works_on() -> None:
    """Its other partitions stay parked."""
    held = Membership.empty(4, "range").with_member(Member("a.1", "a", "host", 1, 1, static_id="s"))
    held = held.with_member(Member("b.1", "b", "host", 1, 1)).with_gone(["a.1"], 99)
    assert held.owners == ("a.1", "a.1", "b.1", "b.1")
    assert held.with_active(range(1, 6)).owners == (None, "a.1", "b.1", "b.1", "b.1", "b.1")


IMPOSSIBLE: list[dict[str, Any]] = [
    {"first": 4},
    {"first": 9},
    {"first": -1},
    {"first": None},
    {"first": 2**50},
    {"v": 1},
    {"v": 2.0},
]


@pytest.mark.parametrize("fields", IMPOSSIBLE, ids=str)
def test_a_document_with_a_first_partition_that_cannot_be_is_damage(fields: dict[str, Any]) -> None:
    """None is too large to be looked at."""
    good = json.loads(stored(group("a.1", partitions=4).with_active(range(2, 4))))
    with pytest.raises(CoordinationError, match=r"cannot be read|names"):
        Membership.parse(json.dumps({**good, **fields}, separators=(",", ":")).encode())
