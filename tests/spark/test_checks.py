"""What a pipeline must be is said where it is declared, before Spark is started."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from streamworker import App
from streamworker.errors import ConfigurationError
from streamworker.spark.driver.checks import (
    beside,
    check_pipeline,
    checkpoint_of,
    is_local,
    local,
    source_options,
    trigger_of,
)
from streamworker.spark.driver.writers import _sink_of
from streamworker.spark.source.options import parse_options
from tests.spark.specs import Order, pipeline

INTO = {"format": "postgres", "path": None, "table": "orders", "dsn_env": "WAREHOUSE"}
READ = ("app", "Stream", "processor")
"""What a pipeline reads is no option of it."""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param({"forward": False}, r"'price', which forwards nothing.*forward=True", id="no rows"),
        *(({"trigger": each}, "10 seconds") for each in ("soon", "10", "seconds", "continuous", "")),
        pytest.param({"mode": "update"}, "mode='complete'", id="files updated in place"),
        pytest.param({"mode": "overwrite"}, "append, complete or update", id="an unknown mode"),
        *(
            pytest.param({"format": "parquet-batches", **each}, "It appends|on a local disk", id=name)
            for name, each in (
                ("batches of a whole", {"mode": "complete"}),
                ("batches nowhere", {"path": None}),
                ("batches far away", {"path": "hdfs://host/lake"}),
                ("batches counted far away", {"checkpoint": "s3a://bucket/ck"}),
            )
        ),
        pytest.param(
            {"format": "parquet-batches", "path": "s3://lake/x", "options": {"partitionBy": "n"}},
            "has not: partitionBy.*one object there; deltalake", id="batches of several objects",
        ),
        *(
            pytest.param({name: url, "format": kind}, f"credentials in the URL of its {name}.*AWS_", id=url)
            for name, url, kind in (
                ("path", "s3://key:password@lake/x", "deltalake"),
                ("path", "s3a://password@lake/x", "parquet"),
                ("path", "abfss://lake:password@account.dfs.core.windows.net/x", "parquet-batches"),
                ("checkpoint", "az://lake/x?sig=password", "parquet"),
            )
        ),
        *(
            pytest.param({"format": "deltalake", **each}, says, id=f"deltalake {name}")
            for name, each, says in (
                ("updated", {"mode": "update"}, "mode='complete'"),
                ("nowhere", {"path": None}, "path=None.* local disk"),
                ("far away", {"path": "hdfs://host/lake"}, "on a local disk, or s3://"),
                ("nowhere in a store", {"path": "s3://"}, "path='s3://'"),
                ("counted far away", {"checkpoint": "hdfs://host/ck"}, "s3a://.* reads the query's id there"),
                ("with options of Spark's", {"options": {"mergeSchema": "true"}}, "mergeSchema.*Leave"),
            )
        ),
        *(
            pytest.param({**INTO, **each}, says, id=f"postgres {name}")
            for name, each, says in (
                ("without a table", {"table": None}, r"table=None.*sales\.orders"),
                ("of a strange table", {"table": "a.b.c"}, "Name a table"),
                ("without a variable", {"dsn_env": None}, "name of an environment variable"),
                ("with its secret", {"dsn_env": "host=x password=y"}, r"has a dsn_env that is no name"),
                ("with a path", {"path": "lake"}, "Leave the path out"),
                ("updated without a key", {"mode": "update"}, r"upsert=\[\.\.\.\]"),
                ("with options of Spark's", {"options": {"url": "x"}}, "options that its sink has not: url"),
                ("counted far away", {"checkpoint": "hdfs://host/ck"}, "reads the query's id there"),
            )
        ),
        *(
            pytest.param({name: value}, f"has {name}= and format='parquet'", id=f"{name} of files")
            for name, value in (("table", "orders"), ("upsert", ("id",)), ("dsn_env", "WAREHOUSE"))
        ),
        *(
            pytest.param({"path": None, "write": print, **each}, says, id=f"write {name}")
            for name, each, says in (
                ("and a path", {"path": "lake"}, "Give it one of them"),
                ("and a format", INTO, "Give it one of them"),
                ("and a table", {"table": "orders"}, "has table= and format='parquet'"),
                ("that is async", {"write": anyio.sleep}, "Write it as def"),
                ("counted far away", {"checkpoint": "hdfs://host/ck"}, "reads the query's id there"),
                ("with options of Spark's", {"options": {"url": "x"}}, "that its sink has not: url"),
                ("by values", {"options": {"partitionBy": "n"}}, "that its sink has not: partitionBy"),
            )
        ),
        pytest.param({"path": "."}, "belongs to the result", id="a path that is everything"),
        *(({"options": {each: "other"}}, f"has option '{each}'.*Leave it out") for each in READ),
        pytest.param(
            {"options": {"startingOffsets": "frist"}}, r"'revenue' .*startingOffsets is 'frist'.*earliest",
            id="a wrong option of the source",
        ),
        pytest.param(
            {"options_of": {"prices": {}}}, "options of 'prices', which is not one.* reads price",
            id="options of an unknown processor",
        ),
        *(
            ({"options_of": {"price": options}}, says)
            for options, says in (
                ({"partitionBy": "n"}, "has not: partitionBy"),
                ({"App": "x"}, "has option 'App'"),
                ({"maxBytesPerTrigger": "1 MB"}, "whole number"),
            )
        ),
        *(
            pytest.param({**INTO, "table": table}, "a name of the sink's own", id=f"postgres {table}")
            for table in ("streamworker_batches", "sales.streamworker_stage")
        ),
    ],
)  # fmt: skip
def test_a_pipeline_that_cannot_be_is_refused_with_what_to_write(given: dict[str, Any], says: str) -> None:
    """Before Spark is started: it would wait for ever, or read one processor's rows with another's schema."""
    with pytest.raises(ConfigurationError, match=says) as refused:
        check_pipeline(pipeline(**given))
    assert "password" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"path": "s3://lake/x"},
        {"path": "s3a://lake/x", "upsert": ("n",), "mode": "update"},
        {"path": "gs://lake/x", "format": "parquet-batches"},
        {"path": "abfss://lake@account.dfs.core.windows.net/x", "mode": "complete"},
        {"path": "s3://lake/x", "checkpoint": "s3a://lake/ck", "options": {"partitionBy": "n"}},
        {**INTO, "checkpoint": "s3a://lake/ck"},
    ],
)
def test_sinks_that_count_batches_write_to_object_stores(given: dict[str, Any]) -> None:
    """And read their checkpoint there, if it is not on a disk, where it is by default."""
    check_pipeline(spec := pipeline(**{"format": "deltalake", **given}))
    assert checkpoint_of(spec) == given.get("checkpoint", ".streamworker/shop/revenue/checkpoint")


def test_an_option_for_one_processor_precedes_that_for_all() -> None:
    """Streams of several numbers of partitions have offsets of their own."""
    app = App("shop")
    one, two = (
        app.processor(app.stream(name, Order, key="user", partitions=n))(same_record(name))
        for name, n in (("one", 1), ("two", 2))
    )
    given: dict[str, Any] = {"startingOffsets": "latest", "one": {"STARTINGOFFSETS": '{"0": 5}'}}
    app.pipeline(one, two, name="both", path="lake", options=given)(lambda one, two: one.join(two, "n"))
    (spec,) = app.registry.pipelines.values()
    offsets = [parse_options(source_options(spec, each)).starting_offsets for each in spec.processors]
    assert [(each.everywhere, each.each) for each in offsets] == [("earliest", {0: 5}), ("latest", {})]


def same_record(name: str) -> Any:
    def function(order: Order) -> Order:
        return order

    function.__name__ = name
    return function


@pytest.mark.parametrize("column", ["batch", "BATCH"])
def test_a_column_that_a_directory_would_hide_is_refused(column: str) -> None:
    """Readers show the name of the batch in the place of its values."""
    spec, result = pipeline(format="parquet-batches"), SimpleNamespace(columns=["n", column])
    with pytest.raises(ConfigurationError, match=rf"has a column '{column}'.*withColumnRenamed"):
        _sink_of(spec, result, "checkpoint", {})


@pytest.mark.parametrize(
    ("trigger", "given"),
    [
        *((each, {"processingTime": each}) for each in ("10 seconds", "500 milliseconds", "1 minute")),
        ("2 Hours", {"processingTime": "2 hours"}),
        ("available now", {"availableNow": True}),
        ("Available Now", {"availableNow": True}),
        ("once", {"availableNow": True}),
    ],
)
def test_triggers_are_times_or_available_now(trigger: str, given: dict[str, Any]) -> None:
    """Also under the name that older Sparks had for it."""
    check_pipeline(pipeline(trigger=trigger))
    assert trigger_of(pipeline(trigger=trigger)) == given


def test_a_whole_result_is_swapped_in_on_a_local_disk_only() -> None:
    """An object store cannot replace a directory at once."""
    with pytest.raises(ConfigurationError, match="replaced at once"):
        check_pipeline(pipeline(mode="complete", path="s3a://bucket/revenue"))
    check_pipeline(pipeline(mode="complete", path="file:///lake/revenue"))
    check_pipeline(pipeline(mode="complete", path="s3a://bucket/revenue", format="delta"))


def test_the_checkpoint_lies_beside_the_result_and_not_in_it() -> None:
    """In it, a reader of the files would take it for data."""
    assert checkpoint_of(pipeline()) == "lake/.streamworker/revenue/revenue/checkpoint"
    assert checkpoint_of(pipeline(checkpoint="elsewhere")) == "elsewhere"
    assert checkpoint_of(pipeline(path=None)) == ".streamworker/shop/revenue/checkpoint"
    assert beside("hdfs://host:9/lake/x") == "hdfs://host:9/lake/.streamworker/x"


def test_local_paths_are_told_from_others() -> None:
    assert is_local("lake")
    assert is_local("file:///lake")
    assert not is_local("s3a://bucket")
    assert local("file:///lake") == local("file:/lake") == local("/lake") == "/lake"


def test_checking_needs_no_spark() -> None:
    code = (
        "import sys, streamworker.spark.driver.checks, streamworker.spark.driver.progress; "
        "sys.exit('pyspark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
