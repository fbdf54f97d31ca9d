"""Check Spark's tables against the data set. Pure: tables in, figures out.

A row counts as found only if all of its values equal those of a sent flight, so a changed value shows as
a lost row.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from streamworker.core.data.placement import Placement
from streamworker.core.snapshot import Rebalance
from streamworker.dev.flights import DELAY_COLUMNS, KEY, expected_delays

REBALANCES_EXPECTED = Counter({"join": 3, "death": 1, "leave": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The results of the demo; :attr:`holds` if all promises hold."""

    sent: int
    expected: int
    """Flights in the data set."""
    spark_rows: int
    lost: int
    """Flights that were sent and equal no row."""
    duplicates: int
    """Rows of a flight after its first."""
    out_of_order: int
    """Rows that follow a later flight of the same aircraft, and rows of an aircraft outside of its first
    partition and of those that follow that when the stream grows."""
    aggregate_equal: bool
    rebalances: tuple[Rebalance, ...]
    after_ms: Mapping[int, int]
    """By generation: the time from the start, SIGKILL or SIGTERM of the worker until all moved partitions
    ran again. It includes the start of a process, or the detection of a death."""
    seconds: float
    archived: int | None = None
    """Records in the archive; None if there is none."""
    archive_equal: bool = True
    """Whether these are the flights, each once."""

    @property
    def missing_rebalances(self) -> Counter[str]:
        """The number of missing finished rebalances by cause."""
        return REBALANCES_EXPECTED - Counter(one.cause for one in self.rebalances if one.ms is not None)

    @property
    def holds(self) -> bool:
        """Whether nothing is lost, duplicated or out of order, and all expected rebalances happened."""
        return (
            self.sent == self.expected == self.spark_rows
            and (self.lost, self.duplicates, self.out_of_order) == (0, 0, 0)
            and self.aggregate_equal
            and self.archive_equal
            and not self.missing_rebalances
            and all(one.ms is not None or one.superseded for one in self.rebalances)
        )

    def as_json(self) -> dict[str, object]:
        """Return the figures as ``--json`` prints them."""
        names: tuple[str, ...] = (
            "sent",
            "spark_rows",
            "lost",
            "duplicates",
            "out_of_order",
            "aggregate_equal",
        )
        names += ("archived", "archive_equal") if self.archived is not None else ()
        of_rebalance = ("cause", "member", "generation", "moved", "ms")
        return {
            **{name: getattr(self, name) for name in names},
            "rebalances": [
                {name: getattr(one, name) for name in of_rebalance}
                | {"after_ms": self.after_ms.get(one.generation)}
                for one in self.rebalances
            ],
            "seconds": round(self.seconds, 1),
        }


def judge(
    *,
    flights: pa.Table,
    sent: int,
    legs: pa.Table,
    delays: pa.Table,
    rebalances: Sequence[Rebalance],
    after_ms: Mapping[int, int],
    placement: Placement,
    seconds: float,
    archived: pa.Table | None = None,
) -> Verdict:
    """Compare Spark's tables, ``legs`` and ``delays``, with the data set in the order of sending.

    ``sent`` counts the records whose sends Redis confirmed; the rows of the tables, and the records that are
    ``archived``, may have any order.
    """
    legs = _typed(legs, flights.schema)
    ranked = flights.append_column("rank", pa.array(range(flights.num_rows), pa.int64()))
    matched = _match(legs, ranked, flights.column_names)
    found = pc.count_distinct(matched["rank"]).as_py()
    doubled = legs.num_rows - legs.group_by(list(KEY)).aggregate([]).num_rows
    return Verdict(
        sent=sent,
        expected=flights.num_rows,
        spark_rows=legs.num_rows,
        lost=flights.num_rows - found,
        duplicates=doubled,
        out_of_order=_out_of_order(matched, placement),
        aggregate_equal=_same_rows(delays, expected_delays(flights)),
        rebalances=tuple(rebalances),
        after_ms=after_ms,
        seconds=seconds,
        archived=None if archived is None else archived.num_rows,
        archive_equal=archived is None or _same_flights(archived, flights),
    )


def _typed(legs: pa.Table, flights: pa.Schema) -> pa.Table:
    """Return the compared columns of the legs, with the types of the data set."""
    wanted = flights.append(pa.field("partition", pa.int64())).append(pa.field("position", pa.int64()))
    if not legs.column_names:
        return wanted.empty_table()
    # Spark writes timestamps as INT96 without a zone; they are UTC.
    return legs.select(wanted.names).cast(wanted)


def _match(legs: pa.Table, ranked: pa.Table, whole: list[str]) -> pa.Table:
    """Add to each leg the rank of the flight that it equals in every column; drop legs without one."""
    theirs = ranked.rename_columns([f"sent_{name}" for name in ranked.column_names])
    joined = legs.join(theirs, keys=list(KEY), right_keys=[f"sent_{name}" for name in KEY], join_type="inner")
    equal = pa.scalar(value=True)
    for name in whole:
        if name not in KEY:
            equal = pc.and_(equal, _same_values(joined[name], joined[f"sent_{name}"]))
    kept = joined.filter(equal)
    return pa.table(
        {name: kept[name] for name in ("partition", "position", "tailnum")} | {"rank": kept["sent_rank"]}
    )


def _same_values(mine: pa.ChunkedArray, theirs: pa.ChunkedArray) -> pa.ChunkedArray:
    """Compare two columns; null equals null."""
    both_null = pc.and_(pc.is_null(mine), pc.is_null(theirs))
    return pc.or_(both_null, pc.fill_null(pc.equal(mine, theirs), fill_value=False))


def _out_of_order(matched: pa.Table, placement: Placement) -> int:
    # A later generation of partitions has higher numbers.
    ordered = matched.sort_by([("partition", "ascending"), ("position", "ascending")])
    latest: dict[str, tuple[int, int]] = {}
    wrong = 0
    columns = (ordered[name].to_pylist() for name in ("tailnum", "partition", "rank"))
    for tailnum, partition, rank in zip(*columns, strict=True):
        if tailnum is None:
            continue
        before = latest.get(tailnum)
        if before is not None and (
            before[0] not in {partition, *placement.ancestors_of(partition)} or before[1] > rank
        ):
            wrong += 1
        else:
            latest[tailnum] = (partition, rank)
    return wrong


def _same_flights(mine: pa.Table, flights: pa.Table) -> bool:
    """Return whether a table holds these flights, each once, in any order."""
    by_key = [(name, "ascending") for name in KEY]
    ordered = mine.select(flights.column_names).cast(flights.schema).sort_by(by_key)
    return bool(ordered.combine_chunks().equals(flights.sort_by(by_key).combine_chunks()))


def _same_rows(mine: pa.Table, theirs: pa.Table) -> bool:
    """Return whether two aggregates hold the same rows, in any order."""
    if set(mine.column_names) != set(DELAY_COLUMNS) or mine.num_rows != theirs.num_rows:
        return False
    by_key = [("carrier", "ascending"), ("day", "ascending")]
    ordered = mine.select(list(DELAY_COLUMNS)).cast(theirs.schema).sort_by(by_key)
    return bool(ordered.combine_chunks().equals(theirs.sort_by(by_key).combine_chunks()))
