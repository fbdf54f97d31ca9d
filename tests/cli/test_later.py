"""`later list|cancel` and what `doctor` says, on records that wait in Redis."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from streamworker import App, ConfigurationError, Stream
from streamworker.cli.exit_codes import ExitCode
from streamworker.importing import resolve_stream
from streamworker.redisio.keys import StreamKeys
from streamworker.tui.figures import local_time
from tests.cli.conftest import Invoke
from tests.raw import opened

ALONE = """
import msgspec
from streamworker import App

app = App("alone")


class Question(msgspec.Struct):
    customer: str


questions = app.stream("questions", Question, key="customer", partitions=2)
"""


@pytest.fixture
def questions(streamworker: Invoke, shop: Path) -> Stream[object]:
    """A stream that no processor reads, with three records that wait."""
    del streamworker  # which names the server
    (shop / "alone.py").write_text(ALONE, "utf-8")
    stream = resolve_stream("alone:questions")
    for number, (customer, after) in enumerate((("ann", 7_200), ("bob", 60), ("ann", 3_600))):
        record = stream.spec.record.python_type(customer)
        stream.sync.schedule(record, id=f"ask-{number}", after=after)
    app = stream.app
    assert isinstance(app, App)
    app.close()
    return stream


def listed(streamworker: Invoke, *options: str) -> list[tuple[str, str]]:
    waiting = streamworker.tells("later", "list", "alone:questions", *options)
    return [(each["id"], each["key"]) for each in waiting]


@pytest.mark.usefixtures("questions")
def test_scheduled_records_are_listed_in_the_order_in_which_they_are_due(streamworker: Invoke) -> None:
    """Over all partitions; by key if asked."""
    assert listed(streamworker) == [("ask-1", "bob"), ("ask-2", "ann"), ("ask-0", "ann")]
    assert listed(streamworker, "--key", "ann", "--limit", "1") == [("ask-2", "ann")]
    table = streamworker("later", "list", "alone:questions").stdout
    assert [line.split()[0] for line in table.splitlines()] == ["id", "ask-1", "ask-2", "ask-0"]
    assert "Nothing waits." in streamworker("later", "list", "shop:orders").output


@pytest.mark.usefixtures("questions")
def test_a_scheduled_record_is_cancelled_by_id_and_key(streamworker: Invoke) -> None:
    """What was not cancelled is not claimed: exit code 1 says so."""
    done = streamworker("later", "cancel", "alone:questions", "ask-0", "--key", "ann")
    assert (done.exit_code, done.stdout) == (0, "Cancelled: it will not be sent.\n")
    for id_, key in (("ask-0", "ann"), ("ask-1", "ann"), ("nobody", "bob")):
        result = streamworker("later", "cancel", "alone:questions", id_, "--key", key)
        assert result.exit_code == ExitCode.FAILED
        assert "Nothing was cancelled" in result.stderr
    assert listed(streamworker) == [("ask-1", "bob"), ("ask-2", "ann")]


def test_doctor_says_that_nobody_sends_what_is_due(
    streamworker: Invoke, questions: Stream[object], redis_url: str
) -> None:
    """The stream has no processor."""
    assert "scheduled" not in streamworker("doctor", "alone:app").stdout
    keys = StreamKeys("alone", questions.name)
    with opened(redis_url) as client:
        for partition in range(2):
            for member, _ in client.zrange(keys.later(partition), 0, -1, withscores=True):
                client.zadd(keys.later(partition), {member: 1_000})
    said = streamworker("doctor", "alone:app").output
    assert "3 scheduled records should have been sent" in said
    assert "no processor of this app reads the stream" in said


def test_a_time_that_no_calendar_holds_is_refused_before_anything_is_stored(
    questions: Stream[object], streamworker: Invoke
) -> None:
    """As "never"; the last time that one holds is listed, wherever this machine is."""
    record = questions.spec.record.python_type("ann")
    questions.sync.schedule(record, id="last", at=datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC))
    for zone in (UTC, timezone(timedelta(hours=-11))):
        with pytest.raises(ConfigurationError, match="is too late"):
            questions.sync.schedule(record, id="never", at=datetime.max.replace(tzinfo=zone))
    app = questions.app
    assert isinstance(app, App)
    app.close()
    assert dict(listed(streamworker)).keys() == {"ask-0", "ask-1", "ask-2", "last"}
    assert "last" in streamworker("later", "list", "alone:questions").stdout


def test_a_time_beyond_all_calendars_is_shown_in_ms() -> None:
    """Such as that of an id in microseconds, which another program has given an entry."""
    east = timezone(timedelta(hours=14))
    assert local_time(1_795_876_651_099_000, zone=UTC) == "1795876651099000 ms since 1970"
    assert local_time(253_402_300_799_999, zone=UTC) == "9999-12-31 23:59:59+00:00"
    assert local_time(253_402_300_799_999, zone=east) == "253402300799999 ms since 1970"
    assert local_time(0, zone=east) == "1970-01-01 14:00:00+14:00"
