"""What a pipeline must be is said where it is declared, before Spark is started."""

import subprocess
import sys

import pytest

from streamworker.errors import ConfigurationError
from streamworker.spark.driver.checks import (
    beside,
    check_pipeline,
    checkpoint_of,
    is_local,
    local,
    trigger_of,
)
from tests.spark.specs import pipeline


def test_a_pipeline_over_a_processor_that_forwards_nothing_is_refused() -> None:
    """It would wait for rows for ever."""
    with pytest.raises(ConfigurationError, match=r"'price', which forwards nothing.*forward=True"):
        check_pipeline(pipeline(forward=False))


@pytest.mark.parametrize(
    "trigger", ["10 seconds", "500 milliseconds", "1 minute", "2 Hours", "available now"]
)
def test_triggers_are_times_or_available_now(trigger: str) -> None:
    """As Spark writes them."""
    check_pipeline(pipeline(trigger=trigger))


def test_available_now_is_a_trigger_of_its_own() -> None:
    """Also under the name that older Sparks had for it."""
    assert trigger_of(pipeline(trigger="Available Now")) == {"availableNow": True}
    assert trigger_of(pipeline(trigger="once")) == {"availableNow": True}
    assert trigger_of(pipeline(trigger="10 Seconds")) == {"processingTime": "10 seconds"}


@pytest.mark.parametrize("trigger", ["soon", "10", "seconds", "continuous", ""])
def test_a_trigger_that_is_no_time_is_refused(trigger: str) -> None:
    """With an example."""
    with pytest.raises(ConfigurationError, match="10 seconds"):
        check_pipeline(pipeline(trigger=trigger))


def test_files_cannot_be_updated_in_place() -> None:
    """The remedy is the mode that can be done with files."""
    with pytest.raises(ConfigurationError, match="mode='complete'"):
        check_pipeline(pipeline(mode="update"))


def test_a_whole_result_is_swapped_in_on_a_local_disk_only() -> None:
    """An object store cannot replace a directory at once."""
    with pytest.raises(ConfigurationError, match="replaced at once"):
        check_pipeline(pipeline(mode="complete", path="s3a://bucket/revenue"))
    check_pipeline(pipeline(mode="complete", path="file:///lake/revenue"))
    check_pipeline(pipeline(mode="complete", path="s3a://bucket/revenue", format="delta"))


@pytest.mark.parametrize("option", ["app", "Stream", "processor"])
def test_what_a_pipeline_reads_is_no_option_of_it(option: str) -> None:
    """It would read one processor's rows with the schema of another."""
    with pytest.raises(ConfigurationError, match=f"has option '{option}'.*Leave it out"):
        check_pipeline(pipeline(options={option: "other"}))


def test_a_wrong_option_of_the_source_is_said_by_the_name_of_its_pipeline() -> None:
    """Before Spark is started, and whichever of its pipelines is."""
    with pytest.raises(ConfigurationError, match=r"'revenue' .*startingOffsets is 'frist'.*earliest"):
        check_pipeline(pipeline(options={"startingOffsets": "frist"}))


def test_an_unknown_mode_is_refused() -> None:
    """With the ones there are."""
    with pytest.raises(ConfigurationError, match="append, complete or update"):
        check_pipeline(pipeline(mode="overwrite"))


def test_a_path_that_is_everything_is_refused() -> None:
    """A result owns its directory."""
    with pytest.raises(ConfigurationError, match="belongs to the result"):
        check_pipeline(pipeline(path="."))


def test_the_checkpoint_lies_beside_the_result_and_not_in_it() -> None:
    """In it, a reader of the files would take it for data."""
    assert checkpoint_of(pipeline(), "shop") == "lake/.streamworker/revenue/revenue/checkpoint"
    assert checkpoint_of(pipeline(checkpoint="elsewhere"), "shop") == "elsewhere"
    assert checkpoint_of(pipeline(path=None), "shop") == ".streamworker/shop/revenue/checkpoint"
    assert beside("hdfs://host:9/lake/x") == "hdfs://host:9/lake/.streamworker/x"


def test_local_paths_are_told_from_others() -> None:
    """``file:`` is local in all its spellings."""
    assert is_local("lake")
    assert is_local("file:///lake")
    assert not is_local("s3a://bucket")
    assert local("file:///lake") == local("file:/lake") == local("/lake") == "/lake"


def test_checking_needs_no_spark() -> None:
    """Declaring a pipeline does not load pyspark."""
    code = (
        "import sys, streamworker.spark.driver.checks, streamworker.spark.driver.progress; "
        "sys.exit('pyspark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
