"""What old partitions have of a group's state goes on in new ones, all of it and once."""

from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.inheriting import beside, heir_of, inherited
from streamworker.core.data.placement import Placement

counts = st.lists(st.integers(1, 40), min_size=2, max_size=3, unique=True).map(sorted)
names = st.lists(st.sampled_from([b"sum", b"last", b"7", b"k3"]), max_size=3)


@given(counts=counts, keys=st.sets(st.integers(0, 200)), names=names, data=st.data())
def test_each_field_is_taken_over_once(
    counts: list[int], keys: set[int], names: list[bytes], data: st.DataObject
) -> None:
    """A key by the partition that it goes to, and what is no key by one partition for each old one."""
    placement = Placement(*counts)
    old, states = placement.generations[-2], dict[int, dict[bytes, bytes]]()
    for p in old:
        here = [b"k%d" % n for n in keys if p in placement.path_of(b"k%d" % n)]
        others = data.draw(st.sets(st.sampled_from(names))) if names else ()
        states[p] = dict.fromkeys((*here, *others), b"%d" % p)
    taken = {
        child: inherited(placement, child, {p: states[p] for p in beside(placement, child)})
        for child in placement.active
    }
    assert sorted((f, v) for its in taken.values() for f, v in its.items()) == sorted(
        (f, v) for its in states.values() for f, v in its.items()
    )
    assert len({heir_of(placement, p) for p in old}) == len(old)
    for field in (b"k%d" % n for n in keys if b"k%d" % n not in names):
        assert field in taken[placement.partition_of(field)]


def test_a_name_that_leads_to_its_partition_by_chance_goes_to_the_heir() -> None:
    """Where it leads to follows two partitions, and both have such a name."""
    placement = Placement(2, 3)
    name = next(each for n in range(100) if placement.path_of(each := b"sum-%d" % n) == (0, 3))

    def taken(states: dict[int, dict[bytes, bytes]]) -> dict[int, bytes | None]:
        return {child: inherited(placement, child, states).get(name) for child in placement.active}

    assert taken({0: {name: b"a"}, 1: {name: b"b"}}) == {2: b"a", 3: b"b", 4: None}
    assert taken({0: {name: b"a"}, 1: {}}) == {2: None, 3: b"a", 4: None}
