"""`archive publish --delta`: a Delta table over the files of an archive, by reference."""

import json
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from streamworker.archive import publishing
from streamworker.cli.exit_codes import ExitCode
from streamworker.importing import resolve_stream
from tests.cli.archiving import all_of, archived, old_records
from tests.cli.conftest import Invoke, rewrite
from tests.cli.test_archive import SHOP

NEWER = "    customer: str\n    note: str | None = None\n"


@pytest.fixture
def lake(streamworker: Invoke, shop: Path) -> str:
    """The folder of an archive."""
    del streamworker  # which names the server
    rewrite(shop, SHOP.replace("URL", repr(f"{shop}/lake")))
    return f"{shop}/lake"


def test_an_archive_in_a_bucket_is_published_there(
    streamworker: Invoke, redis_url: str, shop: Path, bucket: str
) -> None:
    """Again and again, and each record is there once."""
    rewrite(shop, SHOP.replace("URL", repr(bucket)))
    add(redis_url, 0, 40, 1_000)
    publish(streamworker)
    add(redis_url, 40, 20, 100_000)
    publish(streamworker)
    found = pl.read_delta(bucket, storage_options={"allow_http": "true"})
    assert sorted(found["order_id"].to_list()) == list(range(60))


def add(redis_url: str, first: int, records: int, at_ms: int) -> None:
    kind = resolve_stream("shop:orders").spec.record.python_type
    old_records(
        redis_url, "shop:orders", [kind(n, f"c{n % 5}") for n in range(first, first + records)], at_ms
    )
    archived(redis_url, "shop:orders", at_once=7, trim=True)


def ids(lake: str) -> list[int]:
    """Return the orders as Polars reads them from the table, and insist that DuckDB reads the same."""
    found = sorted(pl.read_delta(lake)["order_id"].to_list())
    table = DeltaTable(lake)
    names = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    files = [f"{lake}/{name}" for name in names]
    query = f"select order_id from read_parquet({files!r}, union_by_name=true)"
    assert sorted(each for (each,) in duckdb.connect().execute(query).fetchall()) == found
    return found


def publish(streamworker: Invoke) -> str:
    return streamworker.does("archive", "publish", "shop:orders", "--delta")


def test_each_record_is_read_once_however_often_it_is_published(
    streamworker: Invoke, redis_url: str, lake: str
) -> None:
    """What was archived since is added; nothing is copied."""
    add(redis_url, 0, 40, 1_000)
    assert publish(streamworker).startswith("Added 7 segments with 40 records")
    assert ids(lake) == list(range(40))
    assert "has all segments" in publish(streamworker)
    add(redis_url, 40, 20, 100_000)
    assert "with 20 records" in publish(streamworker)
    assert ids(lake) == list(range(60))
    table = pl.scan_delta(lake).filter(pl.col("partition") == 1).collect()
    assert 0 < len(table) < 60
    assert streamworker.tells("archive", "check", "shop:orders")["faults"] == []


def test_a_column_that_came_later_is_null_before(
    streamworker: Invoke, redis_url: str, lake: str, shop: Path
) -> None:
    """The table gets it when the first segment has it."""
    add(redis_url, 0, 10, 1_000)
    publish(streamworker)
    rewrite(shop, SHOP.replace("URL", repr(lake)).replace("    customer: str\n", NEWER))
    kind = resolve_stream("shop:orders").spec.record.python_type
    old_records(redis_url, "shop:orders", [kind(10, "c1", "hello")], 50_000)
    archived(redis_url, "shop:orders", trim=True)
    publish(streamworker)
    notes = dict(pl.read_delta(lake).select("order_id", "note").iter_rows())
    assert notes == {**dict.fromkeys(range(10)), 10: "hello"}


def test_what_was_erased_or_expired_goes_from_the_table(
    streamworker: Invoke, redis_url: str, lake: str
) -> None:
    """And stays gone."""
    add(redis_url, 0, 40, 1_000)
    publish(streamworker)
    streamworker.does("erase", "shop:app", "--key", "c3", "--yes")
    assert "had records erased" in publish(streamworker)
    left = [n for n in range(40) if n % 5 != 3]
    assert ids(lake) == left
    streamworker.does("archive", "expire", "shop:orders", "--older-than", "1 day", "--yes")
    assert "had expired" in publish(streamworker)
    assert ids(lake) == sorted(json.loads(payload)["order_id"] for payload in all_of("shop:orders"))
    assert "has all segments" in publish(streamworker)


def test_a_table_that_others_have_compacted_gets_no_record_twice(
    streamworker: Invoke, redis_url: str, lake: str
) -> None:
    """Their files lie beside the segments, and the chain is as it was."""
    add(redis_url, 0, 40, 1_000)
    publish(streamworker)
    DeltaTable(lake).optimize.compact()
    assert "has all segments" in publish(streamworker)
    add(redis_url, 40, 20, 100_000)
    publish(streamworker)
    assert ids(lake) == list(range(60))
    assert len(all_of("shop:orders")) == 60


def test_of_two_that_publish_at_the_same_time_one_is_refused(
    streamworker: Invoke, redis_url: str, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the table before the other has committed; run again, it finds all there."""
    add(redis_url, 0, 10, 1_000)
    publish(streamworker)
    add(redis_url, 10, 30, 100_000)
    schema_of = publishing._schema
    said: list[str] = []

    def late(schemas: Any) -> Any:
        with monkeypatch.context() as context:
            context.setattr(publishing, "_schema", schema_of)
            said.append(publish(streamworker))
        return schema_of(schemas)

    with monkeypatch.context() as context:
        context.setattr(publishing, "_schema", late)
        result = streamworker("archive", "publish", "shop:orders", "--delta")
    assert "with 30 records" in said[0]
    assert result.exit_code == ExitCode.FAILED
    assert "was not changed" in result.stderr
    assert "has all segments" in publish(streamworker)
    assert ids(lake) == list(range(40))


def test_a_publisher_that_is_killed_before_its_commit_has_changed_nothing(
    streamworker: Invoke, redis_url: str, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one adds all."""
    add(redis_url, 0, 10, 1_000)

    def killed(_: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(publishing, "_schema", killed)
        assert streamworker("archive", "publish", "shop:orders", "--delta").exit_code == ExitCode.INTERRUPTED
    publish(streamworker)
    assert ids(lake) == list(range(10))


def test_what_cannot_be_published_is_refused(streamworker: Invoke, redis_url: str, shop: Path) -> None:
    """An archive in memory, one that is not there or has no segment yet, and no kind of table."""
    rewrite(shop, SHOP.replace("URL", repr("memory://publish")))
    result = streamworker("archive", "publish", "shop:orders")
    assert result.exit_code == ExitCode.USAGE
    for _ in range(2):
        result = streamworker("archive", "publish", "shop:orders", "--delta")
        assert (result.exit_code, "has no segment yet" in result.stderr) == (ExitCode.FAILED, True)
        streamworker.does("archive", "adopt", "shop:orders", "--yes")
    add(redis_url, 0, 1, 1_000)
    streamworker.does("archive", "adopt", "shop:orders", "--yes")
    result = streamworker("archive", "publish", "shop:orders", "--delta")
    assert result.exit_code == ExitCode.CONFIGURATION
