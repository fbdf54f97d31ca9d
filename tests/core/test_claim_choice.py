"""Which partition is claimed next: the document's rules, on any share of the partitions."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.protocols.claim.choice import Choice, choose
from tests.helpers import drawn

FIRST = lambda most: 0  # noqa: E731

owned = st.dictionaries(st.integers(0, 19), st.sampled_from("abcdef"))


def shares(**counts: int) -> dict[int, str]:
    """Return owners of as many partitions as are named."""
    names = [name for name, count in counts.items() for _ in range(count)]
    return dict(enumerate(names))


def test_an_unclaimed_partition_is_chosen_at_random() -> None:
    """Each of them, and none that has an owner."""
    dice = Random(1)
    owners = {0: "a", 3: "a"}
    chosen = {choose(range(6), owners, "b", lambda most: dice.randint(0, most)) for _ in range(200)}
    assert chosen == {Choice(p, "") for p in (1, 2, 4, 5)}


def test_who_has_less_than_the_minimum_steals_from_who_has_most() -> None:
    """A random one of its partitions; where several have most, from a random one of them."""
    dice = Random(1)
    owners = shares(a=7, b=7, c=4)
    chosen = {choose(range(18), owners, "d", lambda most: dice.randint(0, most)) for _ in range(400)}
    assert {choice.victim for choice in chosen if choice} == {"a", "b"}
    assert {choice.partition for choice in chosen if choice} == set(range(14))


def test_a_surplus_worker_waits() -> None:
    """Five partitions, five workers, and a sixth: 5 / 6 = 0, and 5 % 6 = 5 have one already."""
    full = dict(enumerate("abcde"))
    assert choose(range(5), full, "f", FIRST) is None
    del full[2]
    assert choose(range(5), full, "f", FIRST) == Choice(2, "")


def test_who_has_its_share_leaves_the_unclaimed_to_others() -> None:
    """Only P % N workers have one more: 18 over 4 ends at 5, 5, 4, 4 and never at 5, 5, 5, 3."""
    assert choose(range(18), shares(a=5, b=5, c=4, d=2), "c", FIRST) is None
    assert choose(range(18), shares(a=5, b=5, c=4, d=2), "d", FIRST) == Choice(16, "")


@given(st.integers(1, 20), owned, st.sampled_from("abcdefg"), st.randoms(use_true_random=False))
def test_a_choice_makes_the_shares_more_even(
    partitions: int, owners: dict[int, str], me: str, dice: Random
) -> None:
    """An unclaimed partition, or one of somebody who has at least two more."""
    owners = {p: owner for p, owner in owners.items() if p < partitions}
    choice = choose(range(partitions), owners, me, lambda most: dice.randint(0, most))
    if choice is None:
        return
    counts = Counter(owners.values())
    assert owners.get(choice.partition, "") == choice.victim != me
    if choice.victim:
        assert set(owners) == set(range(partitions))
        assert counts[choice.victim] == max(counts.values()) >= counts[me] + 2


@drawn(40)
@given(st.integers(1, 40), st.integers(1, 12), st.randoms(use_true_random=False))
def test_claims_one_after_the_other_end_in_balance(partitions: int, workers: int, dice: Random) -> None:
    """From any beginning: P % N workers have P / N + 1, all others P / N, and then nobody wants more."""
    names = [f"w{n}" for n in range(workers)]
    owners = {p: dice.choice(names) for p in range(partitions) if dice.random() < 0.7}
    for _ in range(3 * partitions):
        dice.shuffle(names)
        for me in names:
            choice = choose(range(partitions), owners, me, lambda most: dice.randint(0, most))
            if choice is not None:
                owners[choice.partition] = me
    counts = Counter(owners.values())
    least, more = divmod(partitions, workers)
    assert sorted(counts[name] for name in names) == [least] * (workers - more) + [least + 1] * more
    assert all(choose(range(partitions), owners, me, FIRST) is None for me in names)
