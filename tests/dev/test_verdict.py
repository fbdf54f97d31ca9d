"""The demo's judge: whatever is wrong with Spark's tables shows in the figures."""

import dataclasses

import pyarrow as pa
import pytest

from streamworker.core.snapshot import Rebalance
from streamworker.dev.flights import expected_delays, load_flights
from streamworker.dev.verdict import Verdict, judge

pytestmark = pytest.mark.spark("its data set comes with the extra `demo`")

REBALANCES = tuple(
    Rebalance(generation=n, cause=cause, member=f"w{n}", at_ms=n, moved=(0, 1), ms=100)
    for n, cause in enumerate(["join", "join", "join", "death", "leave"])
)


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    """Two thousand flights; some aircraft fly often, some flights have no aircraft."""
    return load_flights().slice(0, 2_000)


@pytest.fixture
def legs(flights: pa.Table) -> pa.Table:
    """What Spark writes when all is well, its rows in no order."""
    partitions = [hash_of(tail) % 3 for tail in flights["tailnum"].to_pylist()]
    positions: list[int] = []
    count = [0, 0, 0]
    for partition in partitions:
        count[partition] += 1
        positions.append(count[partition])
    table = flights.append_column("partition", pa.array(partitions)).append_column(
        "position", pa.array(positions)
    )
    return table.sort_by([("distance", "ascending"), ("dest", "descending")])


def hash_of(tailnum: str | None) -> int:
    """Return a number that is the same for one aircraft."""
    return sum(map(ord, tailnum or "none"))


def judged(flights: pa.Table, legs: pa.Table, delays: pa.Table | None = None) -> Verdict:
    """Judge with everything else as it should be."""
    return judge(
        flights=flights,
        sent=flights.num_rows,
        legs=legs,
        delays=expected_delays(flights) if delays is None else delays,
        rebalances=REBALANCES,
        after_ms={3: 2_300},
        seconds=1.0,
    )


def row_of(table: pa.Table, tailnum: str, nth: int) -> int:
    """Return the index of an aircraft's nth leg, in the order of its partition."""
    rows = [
        (position, index)
        for index, (tail, position) in enumerate(
            zip(table["tailnum"].to_pylist(), table["position"].to_pylist(), strict=True)
        )
        if tail == tailnum
    ]
    return sorted(rows)[nth][1]


def changed(table: pa.Table, column: str, row: int, value: object) -> pa.Table:
    """Return a table with one value changed."""
    values = table[column].to_pylist()
    values[row] = value
    index = table.column_names.index(column)
    return table.set_column(index, column, pa.array(values, table.schema.field(column).type))


def busiest(table: pa.Table) -> str:
    """Return the aircraft with the most legs."""
    counts = table["tailnum"].drop_null().value_counts().to_pylist()
    return str(max(counts, key=lambda one: one["counts"])["values"])


def test_tables_that_are_right_hold(flights: pa.Table, legs: pa.Table) -> None:
    """Rows in any order, nothing missing: everything holds."""
    verdict = judged(flights, legs)

    assert verdict.holds
    assert verdict.as_json() | {"rebalances": []} == {
        "sent": 2_000,
        "spark_rows": 2_000,
        "lost": 0,
        "duplicates": 0,
        "out_of_order": 0,
        "aggregate_equal": True,
        "rebalances": [],
        "seconds": 1.0,
    }


def test_a_missing_row_is_lost_and_one_that_is_there_twice_is_a_duplicate(
    flights: pa.Table, legs: pa.Table
) -> None:
    """One row fewer: one lost. One row more: one duplicate, none lost."""
    fewer = judged(flights, legs.slice(1))
    assert (fewer.lost, fewer.spark_rows, fewer.holds) == (1, 1_999, False)
    more = judged(flights, pa.concat_tables([legs, legs.slice(5, 1)]))
    assert (more.lost, more.duplicates, more.holds) == (0, 1, False)


@pytest.mark.parametrize(("column", "value"), [("arr_delay", -999), ("arr_delay", None), ("tailnum", None)])
def test_a_row_with_another_value_is_lost(
    flights: pa.Table, legs: pa.Table, column: str, value: object
) -> None:
    """The number of rows is right, but one is not what was sent."""
    row = row_of(legs, busiest(flights), 0)

    verdict = judged(flights, changed(legs, column, row, value))

    assert (verdict.lost, verdict.spark_rows, verdict.holds) == (1, 2_000, False)


def test_two_legs_of_one_aircraft_that_changed_places_are_out_of_order(
    flights: pa.Table, legs: pa.Table
) -> None:
    """The log has the later leg first."""
    first, second = (row_of(legs, busiest(flights), nth) for nth in (0, 1))
    positions = legs["position"].to_pylist()

    swapped = changed(
        changed(legs, "position", first, positions[second]), "position", second, positions[first]
    )

    assert (judged(flights, swapped).out_of_order, judged(flights, swapped).lost) == (1, 0)


def test_an_aircraft_in_two_partitions_is_out_of_order(flights: pa.Table, legs: pa.Table) -> None:
    """Between partitions there is no order, so one leg elsewhere is one leg out of order."""
    row = row_of(legs, busiest(flights), 1)
    elsewhere = (legs["partition"].to_pylist()[row] + 1) % 3

    assert judged(flights, changed(legs, "partition", row, elsewhere)).out_of_order == 1


def test_flights_without_an_aircraft_have_no_order(flights: pa.Table, legs: pa.Table) -> None:
    """They are spread over all partitions, in turn."""
    partitions = [
        index % 3 if tail is None else partition
        for index, (tail, partition) in enumerate(
            zip(legs["tailnum"].to_pylist(), legs["partition"].to_pylist(), strict=True)
        )
    ]
    at = legs.column_names.index("partition")

    assert judged(flights, legs.set_column(at, "partition", pa.array(partitions))).holds


@pytest.mark.parametrize("column", ["flights", "cancelled", "dep_delay", "arr_delay", "dep_delay_max"])
def test_an_aggregate_that_differs_in_one_cell_or_lacks_a_row_is_noticed(
    flights: pa.Table, legs: pa.Table, column: str
) -> None:
    """Any figure of any carrier and day counts."""
    right = expected_delays(flights)
    for delays in (changed(right, column, 3, 123_456), right.slice(1)):
        assert not judged(flights, legs, delays).aggregate_equal


def test_empty_tables_are_all_lost(flights: pa.Table) -> None:
    """Spark has written nothing: a verdict, not a crash."""
    verdict = judged(flights, pa.table({}), pa.table({}))

    assert (verdict.lost, verdict.spark_rows, verdict.aggregate_equal) == (2_000, 0, False)


def test_a_rebalance_that_did_not_happen_or_not_finish_is_wanting(flights: pa.Table, legs: pa.Table) -> None:
    """Right tables do not make up for a worker that was never killed."""
    good = judged(flights, legs)
    without_death = dataclasses.replace(
        good, rebalances=tuple(one for one in REBALANCES if one.cause != "death")
    )
    unfinished = dataclasses.replace(
        good, rebalances=(*REBALANCES, dataclasses.replace(REBALANCES[0], ms=None))
    )

    assert (without_death.missing_rebalances, without_death.holds) == ({"death": 1}, False)
    assert not unfinished.holds
