"""docs/spark.md, followed word for word from an empty folder; pandas makes the same of the same flights."""

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from streamworker.dev.flights import load_flights
from tests.following import Reader
from tests.helpers import wait_for
from tests.spark.processes import START_S

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
JANUARY = ("2013-02-01", "2013-02-02")
"""The days of the page. The first run of Spark reads what happened before the first of them; the second run
reads the day after, and reports of flights before that come late."""
YEAR = ("2013-04-01", "2013-07-01", "2013-10-01", "2013-12-31", "2014-01-01")
"""The same, with four runs before the late reports."""
SPARK = "streamworker spark flights:app --once"
DELAY = pd.Timedelta(hours=2)
"""Of the watermarks."""


class FlightsReader(Reader):
    """One who sends flights of other days than the page's."""

    def __init__(self, folder: Path, days: Sequence[str]) -> None:
        super().__init__(PAGE, folder)
        self._days, self._ran = days, 0

    def looks(self) -> Iterator[int]:
        """Follow the page; stop after each run of Spark for a look."""
        for command in self.follow():
            if command.startswith(SPARK):
                for begin, end in pairwise(self._days[:-1] if not self._ran else ()):
                    self.run(f"python reports.py {begin} {end}")
                    self.run(SPARK)
                self._ran += 1
                yield self._ran

    def run(self, command: str) -> str:
        """Run a command for the days of the test; Spark waits until the workers have done their part."""
        last = self._days[-2] if "late" in command else self._days[0]
        command = command.replace(" ".join(JANUARY), " ".join(self._days[-2:]))
        if command.startswith(SPARK):
            wait_for(self._has_no_lag, "the workers have processed what was sent", timeout_s=START_S)
        return super().run(command.replace(f"2013-01-01 {JANUARY[0]}", f"2013-01-01 {last}"))

    def compare(self, printed: str, said: str) -> None:
        """Compare what was printed, if the days are those of the page."""
        if self._days is JANUARY:
            super().compare(printed, said)

    def _has_no_lag(self) -> bool:
        return not any(each["lag"] for each in json.loads(super().run("streamworker lag flights:app --json")))


class Flights:
    """The departures and arrivals of the year, and what the pipelines have to make of them."""

    def __init__(self, days: Sequence[str]) -> None:
        flights = load_flights().to_pandas()
        flights["late"] = flights.index % 100 == 0
        flights = flights[flights["dep_delay"].notna()]
        number, time = flights["flight"].astype(str), flights["scheduled"].dt.strftime("%Y-%m-%dT%H:%M")
        flights["flight"] = flights["carrier"] + number + " " + flights["origin"] + " " + time
        flights["at"] = flights["scheduled"] + pd.to_timedelta(flights["dep_delay"], unit="min")
        flights["km"] = [miles * Decimal("1.609344") for miles in flights["distance"]]
        landed = flights[flights["air_time"].notna()]
        landed = landed.assign(at=landed["at"] + pd.to_timedelta(landed["air_time"], unit="min"))
        self._went, self._came = flights, landed
        self._days = [pd.Timestamp(day, tz="UTC") for day in days]

    def check(self, folder: Path, look: int) -> dict[str, int]:
        """Compare the tables, after the first runs or after the last; return how many rows they have."""
        went, came = (self._sent(each, look) for each in (self._went, self._came))
        counts = {"departures": len(went), "arrivals": len(came)}
        routes = (
            went.groupby(["origin", "dest"]).agg(flights=("flight", "size"), km=("km", "sum")).reset_index()
        )
        routes = routes.sort_values(["flights", "origin", "dest"], ascending=[False, True, True])[:20]
        found = pd.read_parquet((folder / "lake/routes").resolve())
        assert rows_of(found) == rows_of(routes)

        # A window is open until the watermark has passed its end; Spark drops what is before the watermark.
        before = [self._sent(each, 1)["at"].max() - DELAY for each in (self._went, self._came)]
        if look == 2:
            hours_from, joins_from = before[0], min(before)
            counts["late, dropped"] = int((went["late"] & (went["at"] <= hours_from)).sum())
            closed = went["at"].max() - DELAY
            in_time = went[~went["late"] | (went["at"] > hours_from)]
            went = went[~went["late"] | (went["at"] > joins_from)]
            came = came[~came["late"] | (came["at"] > joins_from)]
        else:
            in_time, closed = went, before[0]
        hours = in_time.assign(hour=in_time["at"].dt.floor("h")).groupby(["carrier", "hour"])
        hours = hours.agg(
            flights=("flight", "size"), delay=("dep_delay", "sum"), km=("km", "sum")
        ).reset_index()
        written = hours[hours["hour"] + pd.Timedelta(hours=1) <= closed]
        found = pd.read_parquet(folder / "lake/hours").drop(columns="batch")
        assert sorted(rows_of(found)) == sorted(rows_of(written))
        counts |= {"hours": len(written), "open": len(hours) - len(written)}

        joined = went.merge(came[["flight", "at"]].rename(columns={"at": "landed"}), on="flight")
        joined["added"] = joined["arr_delay"] - joined["dep_delay"]
        joined = joined[["flight", "carrier", "at", "added"]]
        found = pd.read_parquet(folder / "lake/delays").drop(columns="batch")
        assert sorted(rows_of(found.fillna(-9999))) == sorted(rows_of(joined.fillna(-9999)))
        return counts | {"joined": len(joined)}

    def _sent(self, table: pd.DataFrame, look: int) -> pd.DataFrame:
        """Return what has been sent before a look, each report once."""
        *_, first, last = self._days
        in_time = ~table["late"] & (table["at"] < (first if look == 1 else last))
        return table[in_time | (table["late"] & (table["at"] < first) if look == 2 else False)]


def rows_of(table: pd.DataFrame) -> list[tuple[object, ...]]:
    return list(table.itertuples(index=False, name=None))


@pytest.mark.parametrize(
    "days",
    [
        pytest.param(JANUARY, id="month", marks=pytest.mark.full("starts Spark three times")),
        pytest.param(YEAR, id="year", marks=pytest.mark.soak),
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tutorial_does_what_it_says_and_its_tables_equal_pandas(
    days: Sequence[str], tmp_path: Path
) -> None:
    """Delays by carrier and hour, a join, the top routes; late reports count where they are not too late."""
    flights = Flights(days)
    with FlightsReader(tmp_path, days) as reader:
        for look in reader.looks():
            print(flights.check(reader.folder, look))
    assert look == 2
