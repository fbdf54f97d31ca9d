"""Options: what is wrong is said before anything is read, and what may be secret is not shown."""

import pytest

from streamworker.errors import ConfigurationError
from streamworker.spark.source.options import NAMES, Offsets, is_source_option, parse_options

NEEDED = {"app": "shop", "stream": "orders", "processor": "price"}


def test_the_defaults_read_everything_and_fail_on_data_loss() -> None:
    """What a query gets that says nothing."""
    options = parse_options(NEEDED)
    assert options.starting_offsets == Offsets("earliest", {})
    assert options.fail_on_data_loss
    assert options.reader is None
    assert options.retry_timeout_ms == 60_000


def test_names_are_read_in_any_case() -> None:
    """Spark hands options over in lower case."""
    options = parse_options({**NEEDED, "MAXROWSPERTRIGGER": "10", "includemetadata": "TRUE"})
    assert options.max_rows_per_trigger == 10
    assert options.include_metadata


def test_a_misspelt_option_is_an_error_with_a_suggestion() -> None:
    """An ignored limit would be found out in production."""
    with pytest.raises(ConfigurationError, match=r"maxRowPerTrigger.*Did you mean maxRowsPerTrigger"):
        parse_options({**NEEDED, "maxRowPerTrigger": "10"})


def test_an_option_like_no_other_is_answered_with_the_list() -> None:
    """Where there is nothing to suggest."""
    with pytest.raises(ConfigurationError, match="startingOffsets"):
        parse_options({**NEEDED, "zzz": "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "redis://:canary-secret@h/0"),
        ("connection", "rediss://:canary-secret@h/0"),
        ("password", "canary-secret"),
        ("app", "redis://:canary-secret@h/0"),
        ("redis_url", "canary-secret"),
    ],
)
def test_a_url_or_password_as_an_option_is_refused_and_not_shown(name: str, value: str) -> None:
    """Spark copies options into tasks; the message says what to do instead."""
    with pytest.raises(ConfigurationError, match="STREAMWORKER_CONNECTION_PROD") as caught:
        parse_options({**NEEDED, name: value})
    assert "canary-secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["app", "stream", "processor"])
def test_each_needed_option_is_asked_for_by_name(name: str) -> None:
    """A query without a processor reads nothing by accident."""
    with pytest.raises(ConfigurationError, match=f"Option {name} is missing"):
        parse_options({key: value for key, value in NEEDED.items() if key != name})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("maxRowsPerTrigger", "0"),
        ("maxRowsPerTrigger", "ten"),
        ("minPartitions", "-1"),
        ("failOnDataLoss", "yes"),
        ("includeMetadata", "1"),
        ("retryTimeout", "soon"),
        ("retryTimeout", "nan"),
        ("startingOffsets", "oldest"),
        ("startingOffsets", "[1]"),
        ("startingOffsets", '{"0": -3}'),
        ("startingOffsets", '{"0": true}'),
        ("startingOffsets", '{"x": 1}'),
        ("app", "a{b}"),
        ("reader", "a:b"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(option: str, value: str) -> None:
    """With the name of the option in the message."""
    with pytest.raises(ConfigurationError, match=option):
        parse_options({**NEEDED, option: value})


def test_offsets_are_given_for_each_partition_with_names_for_both_ends() -> None:
    """As in Spark's Kafka source: -2 is earliest and -1 latest; what is not named is earliest."""
    found = parse_options({**NEEDED, "startingOffsets": '{"0": 12, "1": -2, "3": -1}'}).starting_offsets
    assert [found.of(p) for p in range(4)] == [12, "earliest", "earliest", "latest"]


def test_the_offset_of_a_progress_event_is_a_starting_offset() -> None:
    """So that a position can be copied from one query to another."""
    text = '{"v": 1, "log": {"0": "x"}, "p": {"0": 7}, "last": {"0": "1-0"}}'
    assert parse_options({**NEEDED, "startingOffsets": text}).starting_offsets.of(0) == 7


def test_options_of_the_other_kind_of_read_are_refused() -> None:
    """A limit on a batch read would be ignored, and so would an end on a stream."""
    with pytest.raises(ConfigurationError, match="endingOffsets is not for a stream"):
        parse_options({**NEEDED, "endingOffsets": "latest"}, streaming=True)
    with pytest.raises(ConfigurationError, match="maxRowsPerTrigger is not for a batch read"):
        parse_options({**NEEDED, "maxRowsPerTrigger": "5"}, streaming=False)


def test_siblings_are_names_of_readers() -> None:
    """With commas between them; no list at all is none."""
    mine = {**NEEDED, "reader": "mine"}
    assert parse_options({**mine, "siblings": "legs, totals,"}).siblings == ("legs", "totals")
    assert parse_options({**NEEDED, "siblings": ""}).siblings == ()
    with pytest.raises(ConfigurationError, match="siblings"):
        parse_options({**mine, "siblings": "legs;totals"})
    with pytest.raises(ConfigurationError, match="Give the query a reader name"):
        parse_options({**NEEDED, "siblings": "legs"})


def test_more_tasks_at_least_than_at_most_is_refused() -> None:
    """Both cannot hold."""
    with pytest.raises(ConfigurationError, match="minPartitions"):
        parse_options({**NEEDED, "minPartitions": "5", "maxPartitions": "4"})


def test_source_options_are_told_from_those_of_a_writer() -> None:
    """A pipeline's options hold both."""
    assert all(is_source_option(name) for name in NAMES)
    assert not is_source_option("compression")
