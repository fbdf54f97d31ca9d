"""What the live view works out from snapshots."""

from dataclasses import replace

from streamworker.core.snapshot import ReaderView, Rebalance
from streamworker.tui import model
from tests.tui.groups import group


def test_a_rate_is_what_was_committed_between_two_snapshots() -> None:
    """Five hundred entries in two seconds are 250 a second, for the partition and its worker."""
    before = group(partitions=4, workers=2, at_ms=10_000)
    after = group(partitions=4, workers=2, at_ms=12_000, committed=500)
    rows = model.rows(before, after)
    assert [cell.per_s for cell in rows.cells] == [250.0] * 4
    assert rows.workers[0].per_s == 500.0
    assert rows.committed_per_s == 1000.0


def test_one_snapshot_or_a_counter_that_started_again_gives_no_rate_rather_than_a_wrong_one() -> None:
    """Until there are two looks at a counter its rate is unknown; FLUSHALL makes it smaller."""
    rows = model.rows(None, group(partitions=2, workers=1))
    assert rows.committed_per_s is None
    assert all(cell.per_s is None for cell in rows.cells)
    before = group(partitions=2, workers=1, at_ms=10_000, committed=9_000)
    assert model.rows(before, group(partitions=2, workers=1, at_ms=12_000)).committed_per_s is None


def test_arrivals_count_what_waits_as_well_as_what_is_done() -> None:
    """Sent entries are either committed or lag."""
    before = group(partitions=1, workers=1, at_ms=10_000, lag=100)
    after = group(partitions=1, workers=1, at_ms=11_000, lag=300, committed=50)
    assert model.rows(before, after).arrived_per_s == 250.0


def test_a_worker_keeps_its_letter_when_an_older_one_leaves_and_a_new_one_gets_the_first_free_one() -> None:
    """Colours and letters that jump from row to row could not be followed by eye."""
    snapshot = group(partitions=6, workers=3)
    three = model.rows(None, snapshot)
    assert [worker.letter for worker in three.workers] == ["A", "B", "C"]
    rows = model.rows(None, replace(snapshot, members=snapshot.members[1:]), letters=three.letters)
    assert [worker.letter for worker in rows.workers] == ["B", "C"]
    rows = model.rows(None, snapshot, letters={"w2": "A", "w3": "C"})
    assert {worker.member.name: worker.letter for worker in rows.workers} == {"w1": "B", "w2": "A", "w3": "C"}


def test_more_workers_than_letters_are_still_shown() -> None:
    """The seventieth worker has no letter of its own, but a row."""
    rows = model.rows(None, group(partitions=128, workers=70))
    assert len(rows.workers) == 70
    assert rows.workers[-1].letter == model.SURPLUS


def test_a_handover_names_both_the_owner_and_the_next_one() -> None:
    """While a partition drains, it is held by one worker and assigned to another."""
    snapshot = group(partitions=2, workers=2)
    moving = replace(snapshot.partitions[0], assigned="w2", state="draining")
    rows = model.rows(None, replace(snapshot, partitions=(moving, snapshot.partitions[1])))
    assert (rows.cells[0].owner, rows.cells[0].wanted, rows.cells[0].view.state) == ("A", "B", "draining")


def test_an_owner_that_is_no_member_any_more_is_shown_as_unknown() -> None:
    """The lock of a dead worker stands until its successor takes it."""
    snapshot = group(partitions=1, workers=1)
    orphan = replace(snapshot.partitions[0], owner="w9", assigned=None)
    assert model.rows(None, replace(snapshot, partitions=(orphan,))).cells[0].owner == "?"


def test_rebalances_are_newest_first() -> None:
    """The last change is the one to look at."""
    snapshot = replace(
        group(partitions=1, workers=1, at_ms=60_000),
        rebalances=(
            Rebalance(1, "join", "w1", 10_000, (0,), 12),
            Rebalance(2, "death", "w2", 55_000, (), None),
        ),
    )
    rows = model.rows(None, snapshot)
    assert [change.generation for change in rows.rebalances] == [2, 1]


def test_a_spark_reader_has_a_position_a_lag_and_a_rate_in_rows() -> None:
    """Positions are summed over the partitions."""
    before = replace(
        group(partitions=2, workers=1, at_ms=1_000), readers=(ReaderView("lake", {0: 5, 1: 5}, 9, 900),)
    )
    after = replace(
        group(partitions=2, workers=1, at_ms=3_000), readers=(ReaderView("lake", {0: 25, 1: 5}, 4, 2_500),)
    )
    reader = model.rows(before, after).readers[0]
    assert (reader.rows, reader.view.lag_rows, reader.per_s) == (30, 4, 10.0)


def test_standbys_and_halted_partitions_are_named() -> None:
    """What needs an eye is found without searching the matrix."""
    snapshot = group(partitions=2, workers=2, standbys=1)
    halted = replace(snapshot.partitions[1], state="halted", reason="ValueError: no")
    rows = model.rows(None, replace(snapshot, partitions=(snapshot.partitions[0], halted)))
    assert [worker.member.name for worker in rows.standbys] == ["w3"]
    assert [(view.partition, view.reason) for view in rows.halted] == [(1, "ValueError: no")]
