"""docs/spark.md, followed word for word from an empty folder; pandas makes the same of the same flights."""

import json
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest

from streamworker.dev.flights import load_flights
from tests.following import PAUSE_S, Reader
from tests.helpers import wait_for
from tests.spark.processes import START_S

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
JANUARY = ("2013-02-01", "2013-02-02")
"""The days of the page. The first run of Spark reads what happened before the first of them; the second run
reads the day after, and reports of flights before that come late."""
SPARK = "streamworker spark flights:app --once"
DELAY = pd.Timedelta(hours=2)
"""Of the watermarks."""


class FlightsReader(Reader):
    """One whose Spark waits until the workers have done their part."""

    def run(self, command: str) -> str:
        """Run a command of the page."""
        if command.startswith(SPARK):
            wait_for(self._has_no_lag, "the workers have processed what was sent", START_S, PAUSE_S)
        return super().run(command)

    def _has_no_lag(self) -> bool:
        return not any(each["lag"] for each in json.loads(super().run("streamworker lag flights:app --json")))


class Flights:
    """Departures and arrivals, and what the pipelines have to make of them."""

    def __init__(self) -> None:
        flights = load_flights().to_pandas()
        flights["late"] = flights.index % 100 == 0
        # No flight left more than 43 minutes early.
        until = pd.Timestamp(JANUARY[1], tz="UTC") + pd.Timedelta(hours=1)
        flights = flights[flights["dep_delay"].notna() & (flights["scheduled"] < until)]
        number, time = flights["flight"].astype(str), flights["scheduled"].dt.strftime("%Y-%m-%dT%H:%M")
        flights["flight"] = flights["carrier"] + number + " " + flights["origin"] + " " + time
        flights["at"] = flights["scheduled"] + pd.to_timedelta(flights["dep_delay"], unit="min")
        flights["km"] = [miles * Decimal("1.609344") for miles in flights["distance"]]
        landed = flights[flights["air_time"].notna()]
        landed = landed.assign(at=landed["at"] + pd.to_timedelta(landed["air_time"], unit="min"))
        self._went, self._came = flights, landed

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
        first, last = (pd.Timestamp(day, tz="UTC") for day in JANUARY)
        in_time = ~table["late"] & (table["at"] < (first if look == 1 else last))
        return table[in_time | (table["late"] & (table["at"] < first) if look == 2 else False)]


def rows_of(table: pd.DataFrame) -> list[tuple[object, ...]]:
    return list(table.itertuples(index=False, name=None))


@pytest.mark.soak("starts Spark three times")
@pytest.mark.timeout(1800)
def test_the_tutorial_does_what_it_says_and_its_tables_equal_pandas(tmp_path: Path) -> None:
    """Delays by carrier and hour, a join, the top routes; late reports count where they are not too late."""
    flights, look = Flights(), 0
    with FlightsReader(PAGE, tmp_path) as reader:
        for command in reader.follow():
            if command.startswith(SPARK):
                look += 1
                print(flights.check(reader.folder, look))
    assert look == 2
