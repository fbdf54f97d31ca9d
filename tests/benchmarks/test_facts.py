"""What a change of a group was like, from commits: no pause goes unseen."""

from benchmarks.rebalances.facts import Commit, all_committed_ms, longest_of

BALANCED_MS = 2_000
"""When the last lock was taken."""
STAYED = [Commit(at_ms, at_ms - 5, "a", 1) for at_ms in range(0, 6_000, 250)]


def moved(resumed_ms: int) -> list[Commit]:
    """Return the log of a partition whose new owner begins at a time; records wait from 1,000 on."""
    return [Commit(995, 990, "a", 1), Commit(resumed_ms, 1_000, "b", 2)]


def test_a_pause_that_lasts_longer_than_the_balance_is_counted_whole() -> None:
    """The new owner has the lock, and takes seconds until its first commit."""
    commits = {0: STAYED, 1: moved(5_200)}
    until_ms = all_committed_ms(commits, BALANCED_MS)
    assert until_ms == 5_200
    assert longest_of(commits, [1], 900, until_ms) == 4_200


def test_a_partition_that_is_not_committed_to_again_is_waited_for() -> None:
    """It would else be the one with the shortest pause: none."""
    commits = {0: STAYED, 1: moved(1_900)[:1]}
    assert longest_of(commits, [1], 900, 6_000) == 0
    assert all_committed_ms(commits, BALANCED_MS) is None
    assert all_committed_ms({0: STAYED, 1: []}, BALANCED_MS) is None
