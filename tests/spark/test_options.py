"""Options: what is wrong is said before anything is read, and what may be secret is not shown."""

from dataclasses import replace

import pytest

from streamworker.errors import ConfigurationError
from streamworker.spark.source.options import NAMES, Offsets, is_source_option, parse_options

NEEDED = {"app": "shop", "stream": "orders", "processor": "price"}

VALUES = {
    **dict.fromkeys(("app", "stream", "processor", "connection", "reader", "siblings"), ("a{b}", "a:b")),
    **dict.fromkeys(
        ("startingOffsets", "endingOffsets"), ("oldest", "[1]", '{"0": -3}', '{"0": true}', '{"x": 1}')
    ),
    **dict.fromkeys(("startingTimestamp", "endingTimestamp"), ("soon", "2026-01-31T12:00")),
    **dict.fromkeys(
        ("maxRowsPerTrigger", "maxBytesPerTrigger", "minPartitions", "maxPartitions", "parallelism"),
        ("0", "-1", "ten"),
    ),
    **dict.fromkeys(("failOnDataLoss", "includeMetadata", "includeHeaders"), ("yes", "1")),
    "otherColumns": ("keep",),
    **dict.fromkeys(("retryTimeout", "idleWait"), ("soon", "-1", "nan")),
}
"""Values that an option refuses. The source itself reads ``recordSchema``; a directory may have any name."""

OF_A_STREAM = {"maxRowsPerTrigger": "5", "idleWait": "1", "reader": "mine"}
"""What a batch read refuses; and a stream the others."""
OF_A_BATCH = {"endingOffsets": "latest", "endingTimestamp": "2026-01-31T12:00Z"}


def refusal(given: dict[str, str], *, streaming: bool | None = None) -> str:
    """Return the error of these options beside the needed ones."""
    try:
        parse_options({**NEEDED, **given}, streaming=streaming)
    except ConfigurationError as error:
        return str(error)
    raise AssertionError(f"{given} is taken")


def test_the_defaults_read_everything_and_fail_on_data_loss() -> None:
    """What a query gets that says nothing. Spark hands options over in lower case, and any case will do."""
    options = parse_options({**NEEDED, "MAXROWSPERTRIGGER": "10", "includemetadata": "TRUE"})
    assert options.starting_offsets == Offsets("earliest", {})
    assert options.fail_on_data_loss
    assert options.reader is None
    assert options.retry_timeout_ms == 60_000
    assert (options.max_rows_per_trigger, options.include_metadata) == (10, True)


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


@pytest.mark.parametrize(("option", "value"), [(name, value) for name in VALUES for value in VALUES[name]])
def test_a_value_that_cannot_be_is_refused_by_name(option: str, value: str) -> None:
    assert option in refusal({option: value})


DEFAULTS = {name: option.default.partition(";")[0] for name, option in NAMES.items()}
"""As the page names them, without what holds in a pipeline."""


@pytest.mark.parametrize(
    ("name", "default"),
    [(name, word) for name, word in DEFAULTS.items() if word not in ("none", "required") and " " not in word],
)
def test_the_default_of_the_page_is_the_one_that_holds(name: str, default: str) -> None:
    """To give it is to leave the option out; of failOnDataLoss alone the page says what it does besides."""
    given = parse_options({**NEEDED, name: default})
    assert replace(given, fail_on_late_start=False) == parse_options(NEEDED)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *(({name: None}, f"Option {name} is missing.*TEMPORARY VIEW") for name in ("app", "processor")),
        ({"path": "shop/orders/price"}, r"have no path.*load\(\) without one"),
        ({"provider": "streamworker", "option.app": "shop", "owner": "me"}, "no table of.*TEMPORARY VIEW"),
        ({"maxRowPerTrigger": "10"}, "maxRowPerTrigger.*Did you mean maxRowsPerTrigger"),
        ({"zzz": "1"}, "startingOffsets"),
        ({"startingTimestamp": "2", "endingTimestamp": "1"}, "startingTimestamp is after endingTimestamp"),
        (
            {"startingOffsets": '{"0": 9}', "endingOffsets": '{"0": 8}'},
            r"startingOffsets \(9\) is after endingOffsets",
        ),
        ({"startingOffsets": "latest", "endingOffsets": "earliest"}, "is after endingOffsets"),
        (
            {"startingTimestamp": "1", "startingOffsets": "latest"},
            "startingTimestamp and startingOffsets are",
        ),
        ({"endingTimestamp": "1", "endingOffsets": "latest"}, "endingTimestamp and endingOffsets are given"),
        ({"minPartitions": "5", "maxPartitions": "4"}, r"minPartitions \(5\) is above maxPartitions \(4\)"),
        ({"siblings": "legs"}, "siblings is given, and reader is not.*Give the query a reader name"),
        *(({name: "lake/legs"}, "One of the options sinkPath") for name in ("sinkPath", "sinkCheckpoint")),
        ({"table": "totals"}, "table and processor"),
        ({"processor": None, "table": "totals", "startingOffsets": "latest"}, "table and startingOffsets"),
        ({"processor": None, "table": "totals", "minPartitions": "4"}, "table and minPartitions"),
        ({"processor": None, "table": "totals", "app": None}, "Option app is missing"),
        ({"processor": None, "table": "a:b"}, "The table name"),
        ({"reader": "mine", "siblings": "legs;totals"}, "siblings"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_what_to_give(
    given: dict[str, str | None], says: str
) -> None:
    """One that is missing, one that is misspelt, one like no other, and two that cannot both hold."""
    options = {name: value for name, value in {**NEEDED, **given}.items() if value is not None}
    with pytest.raises(ConfigurationError, match=says):
        parse_options(options)


def test_options_of_the_other_kind_of_read_are_refused() -> None:
    for name, value in OF_A_BATCH.items():
        assert refusal({name: value}, streaming=True) == f"Option {name} is not for a stream. Leave it out."
    for name, value in OF_A_STREAM.items():
        assert (
            refusal({name: value}, streaming=False) == f"Option {name} is not for a batch read. Leave it out."
        )


def test_offsets_are_given_for_each_partition_with_names_for_both_ends() -> None:
    """As in Spark's Kafka source: -2 is earliest and -1 latest; what is not named is earliest.

    The offset of a progress event will do, so that a position can be copied from one query to another.
    """
    found = parse_options({**NEEDED, "startingOffsets": '{"0": 12, "1": -2, "3": -1}'}).starting_offsets
    assert [found.of(p) for p in range(4)] == [12, "earliest", "earliest", "latest"]
    text = '{"v": 1, "log": {"0": "x"}, "p": {"0": 7}, "last": {"0": "1-0"}}'
    assert parse_options({**NEEDED, "startingOffsets": text}).starting_offsets.of(0) == 7


def test_siblings_are_names_of_readers() -> None:
    mine = {**NEEDED, "reader": "mine"}
    assert parse_options({**mine, "siblings": "legs, totals,"}).siblings == ("legs", "totals")
    assert parse_options({**NEEDED, "siblings": ""}).siblings == ()


def test_source_options_are_told_from_those_of_a_writer() -> None:
    assert all(is_source_option(name) for name in NAMES)
    assert not is_source_option("compression")
