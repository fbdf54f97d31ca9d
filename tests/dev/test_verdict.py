"""The demo's judge: whatever is wrong with Spark's tables shows in the figures."""

import dataclasses
from collections.abc import Callable

import pyarrow as pa
import pytest

from streamworker.core.data.placement import Placement
from streamworker.core.snapshot import Rebalance
from streamworker.dev.flights import expected_delays
from streamworker.dev.verdict import Verdict, judge

pytestmark = pytest.mark.spark("its data set comes with the extra `demo`")

REBALANCES = tuple(
    Rebalance(generation=n, cause=cause, member=f"w{n}", at_ms=n, moved=(0, 1), ms=100)
    for n, cause in enumerate(["join", "join", "join", "death", "leave"])
)


@pytest.fixture
def flights(flights: pa.Table) -> pa.Table:
    """Two thousand flights; some aircraft fly often, some flights have no aircraft."""
    return flights.slice(0, 2_000)


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


MAP = Placement(3, 6)

Change = Callable[[pa.Table, pa.Table], pa.Table]
"""From the data set and the table of legs to another table of legs."""


def hash_of(tailnum: str | None) -> int:
    """Return a number that is the same for one aircraft."""
    return sum(map(ord, tailnum or "none"))


def judged(
    flights: pa.Table, legs: pa.Table, delays: pa.Table | None = None, archived: pa.Table | None = None
) -> Verdict:
    """Judge with everything else as it should be."""
    return judge(
        flights=flights,
        sent=flights.num_rows,
        legs=legs,
        delays=expected_delays(flights) if delays is None else delays,
        rebalances=REBALANCES,
        after_ms={3: 2_300},
        placement=MAP,
        seconds=1.0,
        archived=archived,
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


def test_an_archive_has_each_flight_once(flights: pa.Table, legs: pa.Table) -> None:
    """In any order; one that it lacks, has twice or has with another value does not hold."""
    backwards = flights.take(list(range(flights.num_rows - 1, -1, -1)))
    other = changed(flights, "dest", 0, "XXX")
    twice = pa.concat_tables([flights.slice(1), flights.slice(1, 1)])
    archives = {"right": backwards, "lacks": flights.slice(1), "twice": twice, "other": other}
    held = {name: judged(flights, legs, archived=each).holds for name, each in archives.items()}
    assert held == {"right": True, "lacks": False, "twice": False, "other": False}
    assert judged(flights, legs, archived=backwards).as_json()["archived"] == 2_000


def with_value(column: str, value: object) -> Change:
    """Give the first leg of the busiest aircraft another value."""
    return lambda flights, legs: changed(legs, column, row_of(legs, busiest(flights), 0), value)


def swapped(flights: pa.Table, legs: pa.Table) -> pa.Table:
    """Let the log have the later of two legs of one aircraft first."""
    first, second = (row_of(legs, busiest(flights), nth) for nth in (0, 1))
    positions = legs["position"].to_pylist()
    legs = changed(legs, "position", first, positions[second])
    return changed(legs, "position", second, positions[first])


def moved(flights: pa.Table, legs: pa.Table) -> pa.Table:
    """Put the last leg of an aircraft into a later partition: between partitions there is no order."""
    row = row_of(legs, busiest(flights), -1)
    return changed(legs, "partition", row, legs["partition"].to_pylist()[row] + 1)


def grown(after: int) -> Change:
    """Put the last leg of an aircraft into a partition that follows its own, or one so far after that."""

    def change(flights: pa.Table, legs: pa.Table) -> pa.Table:
        row = row_of(legs, busiest(flights), -1)
        partition = (legs["partition"].to_pylist()[row] + after) % 3
        return changed(legs, "partition", row, MAP.children_of(partition)[1])

    return change


def spread(_: pa.Table, legs: pa.Table) -> pa.Table:
    """Spread flights without an aircraft over all partitions: they have no order."""
    known = zip(legs["tailnum"].to_pylist(), legs["partition"].to_pylist(), strict=True)
    partitions = [index % 3 if tail is None else partition for index, (tail, partition) in enumerate(known)]
    return legs.set_column(legs.column_names.index("partition"), "partition", pa.array(partitions))


@pytest.mark.parametrize(
    ("change", "figures"),
    [
        pytest.param(lambda _, legs: legs.slice(1), {"lost": 1, "spark_rows": 1_999}, id="a row is missing"),
        pytest.param(
            lambda _, legs: pa.concat_tables([legs, legs.slice(5, 1)]),
            {"duplicates": 1, "spark_rows": 2_001},
            id="a row is there twice",
        ),
        pytest.param(with_value("arr_delay", -999), {"lost": 1}, id="another value"),
        pytest.param(with_value("arr_delay", None), {"lost": 1}, id="a value is missing"),
        pytest.param(with_value("tailnum", None), {"lost": 1}, id="an aircraft is missing"),
        pytest.param(swapped, {"out_of_order": 1}, id="legs changed places"),
        pytest.param(moved, {"out_of_order": 1}, id="an aircraft in two partitions"),
        pytest.param(grown(0), {}, id="an aircraft goes on where the stream has grown"),
        pytest.param(grown(1), {"out_of_order": 1}, id="an aircraft goes on where another should"),
        pytest.param(spread, {}, id="flights without an aircraft anywhere"),
    ],
)
def test_whatever_is_wrong_with_the_legs_shows_in_the_figures(
    flights: pa.Table, legs: pa.Table, change: Change, figures: dict[str, int]
) -> None:
    """And in no other figure than that of what is wrong."""
    verdict = judged(flights, change(flights, legs))
    right = {"lost": 0, "duplicates": 0, "out_of_order": 0, "spark_rows": 2_000}
    assert {name: getattr(verdict, name) for name in right} == right | figures
    assert verdict.holds == (not figures)


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
