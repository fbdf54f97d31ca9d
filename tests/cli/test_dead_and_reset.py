"""`dead list|show|replay|drop` and `reset`, on letters that a worker has left."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from streamworker.cli.data.reset import parse_target
from streamworker.cli.exit_codes import ExitCode
from streamworker.core.data.entries import SEQUENCE_MAX, ZERO, EntryId
from tests.cli.conftest import SHOP, Invoke, rewrite, work_off
from tests.conftest import SpawnWorker
from tests.contract.support import url_of_user
from tests.helpers import wait_for
from tests.raw import opened

ORDERS = [{"order_id": n, "customer": f"c{n}", "amount": -1.0 if n % 4 == 0 else 1.0} for n in range(12)]


def letters(streamworker: Invoke) -> Any:
    """The dead letters of `price`."""
    return streamworker.tells("dead", "list", "shop:price")


def lag(streamworker: Invoke) -> int:
    """Entries that wait for `price`."""
    return int(streamworker.tells("lag", "shop:price")[0]["lag"])


@pytest.fixture
def sent(streamworker: Invoke) -> None:
    """Twelve orders, of which three cannot be priced."""
    streamworker.does("send", "shop:orders", "-", input="\n".join(map(json.dumps, ORDERS)))


@pytest.fixture
def stopped(sent: None, redis_url: str) -> None:
    """A worker that has taken the orders, given up three of them, and left."""
    work_off(redis_url)


def test_dead_letters_are_chosen_by_error_and_time(stopped: None, streamworker: Invoke) -> None:
    """In lists and replays; a letter has the end of its traceback, which names the line of the function."""
    first = letters(streamworker)[0]
    assert "pricing" in str(first["traceback"])
    assert "raise ValueError(" in streamworker("dead", "show", "shop:price", str(first["letter"])).stdout
    by_error = ("dead", "list", "shop:price", "--error", "ValueError", "--since", "1 hour", "--json")
    assert len(json.loads(streamworker(*by_error).stdout)) == 3
    assert streamworker.tells("dead", "list", "shop:price", "--error", "Value") == []
    assert "no such dead letters" in streamworker("dead", "list", "shop:price", "--error", "KeyError").stdout
    assert streamworker.tells("dead", "list", "shop:price", "--since", "0 s") == []
    unset = streamworker("dead", "replay", "shop:price", "--error", "ValueError", "--since", "")
    assert (unset.exit_code, "--since='' is no duration" in unset.stderr) == (ExitCode.USAGE, True)
    none = streamworker("dead", "replay", "shop:price", "--error", "KeyError")
    assert none.output == "There are no such dead letters. Nothing was changed.\n"
    assert none.exit_code == ExitCode.FAILED
    some = streamworker("dead", "replay", "shop:price", "--error", "ValueError", "--since", "1 hour")
    assert some.stdout.startswith('Replayed 3 of 3 dead letters to the group "price", and to no other: ')
    assert letters(streamworker) == []


def test_a_list_begins_with_a_summary_and_has_the_newest_first(
    stopped: None, streamworker: Invoke, redis_url: str
) -> None:
    """By error, or by the hour; `--by` prints nothing else, and `--limit` cuts no count."""
    hour_ms, there = 3_600_000, letters(streamworker)[0]["partition"]
    with opened(redis_url) as raw:
        _, fields = raw.xrevrange(f"sw:{{shop.orders.{there}}}:dead:price", count=1)[0]
        for ago in (3, 2, 2):
            at_ms = int(time.time() * 1000) - ago * hour_ms
            old = fields | {b"at": str(at_ms), b"error": f"KeyError('x') {ago}"}
            raw.xadd("sw:{shop.orders.0}:dead:price", old, id=f"{at_ms}-*")
    listed = streamworker("dead", "list", "shop:price", "--limit", "4")
    head, *lines = listed.stdout.splitlines()
    assert head.split() == ["error", "letters", "first", "last"]
    assert [line.split()[:2] for line in lines[:2]] in (
        [["ValueError", "3"], ["KeyError", "3"]],
        [["KeyError", "3"], ["ValueError", "3"]],
    )
    assert lines[2] == "" and lines[3].split() == ["letter", "time", "attempts", "error"]
    assert ["KeyError" in line for line in lines[4:]] == [False, False, False, True]
    assert lines[-1].endswith("2") and "The newest 4 of 6; --limit shows more." in listed.stderr
    ids = [str(letter["letter"]).partition("/")[2] for letter in letters(streamworker)]
    assert ids == sorted(ids, reverse=True) and len(ids) == 6

    by_error = streamworker("dead", "list", "shop:price", "--by", "error", "--since", "90 min")
    assert [line.split()[0] for line in by_error.stdout.splitlines()] == ["error", "ValueError"]
    by_hour = streamworker.tells("dead", "list", "shop:price", "--by", "hour")
    assert [each["letters"] for each in by_hour][-2:] == [2, 1]
    assert by_hour == sorted(by_hour, key=lambda each: each["what"], reverse=True)
    assert all(re.fullmatch(r"[\d-]{10} \d\d:00:00[+-]\d\d:\d\d", each["what"]) for each in by_hour)


def test_exported_letters_are_replayed_as_edited(
    stopped: None, streamworker: Invoke, redis_url: str, tmp_path: Path
) -> None:
    """Also a second time, when nothing of it is left to send; what was not edited keeps its bytes."""
    exported = [json.loads(line) for line in streamworker("dead", "export", "shop:price").stdout.splitlines()]
    assert len(exported) == 3 and {each["record"]["amount"] for each in exported} == {-1.0}
    mended = [each | {"record": each["record"] | {"amount": 5.0}} for each in exported[:2]]
    file = tmp_path / "letters.jsonl"
    file.write_text("\n".join(map(json.dumps, [*mended[::-1], exported[2]])) + "\n", "utf-8")
    (tmp_path / "one.jsonl").write_text(json.dumps(mended[0]), "utf-8")
    replay = ("dead", "replay", "shop:price", "--from")
    (tmp_path / "empty.jsonl").touch()
    assert streamworker(*replay, "empty.jsonl").stderr == "empty.jsonl has no letter. Nothing was changed.\n"
    assert "Replayed 3 of 3" in streamworker(*replay, str(file)).stdout
    again = streamworker(*replay, str(file))
    assert again.exit_code == ExitCode.FAILED
    assert "Replayed 0 of 3" in again.stdout and f"did not exist: {mended[0]['letter']}" in again.stderr
    work_off(redis_url)
    (left,) = letters(streamworker)
    assert left["record"] == exported[2]["record"]
    assert left["fields"]["v"] == exported[2]["fields"]["v"]


PYDANTIC = """
import pydantic
from streamworker import App, DeadLetter

app = App("shop")


class Order(pydantic.BaseModel):
    number: int = pydantic.Field(alias="orderId")
    amount: float


orders = app.stream("orders", Order, partitions=4)


@app.processor(orders, errors=DeadLetter())
async def price(order: Order) -> None:
    if order.amount < 0:
        raise ValueError("amount is negative")
"""


def test_records_of_pydantic_are_shown_exported_and_replayed_as_objects(
    shop: Path, streamworker: Invoke, redis_url: str, tmp_path: Path
) -> None:
    """By the names that their entries have, so that an edited record is one of the type again."""
    rewrite(shop, PYDANTIC)
    wrong = {"orderId": 7, "amount": -1.0}
    streamworker.does("send", "shop:orders", "-", input=json.dumps(wrong))
    assert json.loads(streamworker.does("tail", "shop:orders", "--json"))["record"] == wrong
    work_off(redis_url)
    exported = json.loads(streamworker.does("dead", "export", "shop:price"))
    assert exported["record"] == wrong
    file = tmp_path / "letters.jsonl"
    file.write_text(json.dumps(exported | {"record": wrong | {"amount": 1.0}}), "utf-8-sig")
    assert "Replayed 1 of 1" in streamworker.does("dead", "replay", "shop:price", "--from", str(file))
    work_off(redis_url)
    assert letters(streamworker) == []


def test_a_line_that_cannot_be_replayed_keeps_all_others_back(
    stopped: None, streamworker: Invoke, tmp_path: Path
) -> None:
    """The line is named, and nothing of the file is lost."""
    first, second, third = (
        json.loads(line) for line in streamworker("dead", "export", "shop:price").stdout.splitlines()
    )
    of_wrong_type = first | {"record": first["record"] | {"amount": "much"}}
    of_other_key = second | {"record": second["record"] | {"customer": "c1"}}
    file = tmp_path / "letters.jsonl"
    lines = [json.dumps(each) for each in (of_wrong_type, of_other_key, third, third)]
    text = "\n".join(
        [*lines, "", "{", '{"letter": "9/1-0", "record": {}}', '{"letter": "0/1-0", "record": "é"}']
    )
    file.write_text(text, "latin-1")
    refused = streamworker("dead", "replay", "shop:price", "--from", str(file))
    assert refused.exit_code == ExitCode.FAILED and refused.stdout == ""
    said = refused.stderr.splitlines()
    assert said[0].startswith("Line 1: The entry holds no Order") and "amount" in said[0]
    assert said[1].startswith("Line 2: Key 'c1' belongs to partition ")
    assert said[2] == "Line 4: It is the letter of line 3 again."
    assert said[3].startswith("Line 6: It is no line of `dead export`: ")
    assert said[4] == "Line 7: It is no line of `dead export`: orders has partitions 0 to 3, and not 9."
    assert said[5].startswith("Line 8: It is no line of `dead export`: It is no UTF-8 (byte 31).")
    assert said[6] == f"6 lines of {file} cannot be replayed. Nothing was changed."
    assert len(letters(streamworker)) == 3


def test_while_a_worker_lives_letters_are_replayed_and_nothing_is_reset(
    sent: None, streamworker: Invoke, spawn: SpawnWorker, redis_url: str
) -> None:
    """A letter dies again here, as a new one: replay ends all the same, and replays each once.

    After a move its commits would be refused. Nobody stops the workers for a reset that cannot be.
    """
    worker = spawn("run", "shop:price", "--name", "w1")
    wait_for(lambda: len(letters(streamworker)) == 3 and lag(streamworker) == 0, "three orders are dead")
    would_move_all_back(streamworker)
    before = {letter["letter"] for letter in letters(streamworker)}
    replayed = streamworker.does("dead", "replay", "shop:price", "--all")
    assert "Replayed 3 of 3" in replayed
    wait_for(lambda: len(letters(streamworker)) == 3 and lag(streamworker) == 0, "they are dead again")
    assert before.isdisjoint(letter["letter"] for letter in letters(streamworker))

    result = streamworker("reset", "shop:price", "--to", "earliest", "--yes")
    assert result.exit_code == ExitCode.FAILED
    assert "is being run by w1, in partitions 0-3.\nPause them first" in result.stderr
    streamworker.does("pause", "shop:price", "--partition", "1")
    result = streamworker("reset", "shop:price", "--to", "earliest", "--yes")
    assert result.exit_code == ExitCode.FAILED and "in partitions 0,2-3." in result.stderr
    assert worker.running


@pytest.mark.parametrize("coordination", ["claim", "lease"])
def test_nothing_is_reset_under_an_owner_that_sends_no_heartbeats(
    sent: None, streamworker: Invoke, spawn: SpawnWorker, monkeypatch: pytest.MonkeyPatch, coordination: str
) -> None:
    """It may live, for all that a command can know."""
    monkeypatch.setenv("STREAMWORKER_COORDINATION", coordination)
    worker = spawn("run", "shop:price", "--name", "w1")
    wait_for(lambda: lag(streamworker) == 0, "all orders are handled")
    result = streamworker("reset", "shop:price", "--to", "earliest", "--yes")
    assert result.exit_code == ExitCode.FAILED
    assert "is being run by w1" in result.stderr
    assert worker.running


def would_move_all_back(streamworker: Invoke) -> None:
    """Check that a dry run says what would move and what is not undone, and moves nothing."""
    result = streamworker.does("reset", "shop:price", "--to", "earliest", "--dry-run")
    assert "Moves 4 partitions back by 12 records" in result
    assert "Rows of the acked log that were committed stay" in result
    assert result.endswith("Nothing was changed.\n")
    assert lag(streamworker) == 0


def test_a_letter_is_named_by_its_record_everywhere(
    stopped: None, streamworker: Invoke, redis_url: str
) -> None:
    """As the log and `status` name it, together with letters by their own ids. One is shown in full: the
    record, the entry, who gave it up.
    """
    before = letters(streamworker)
    assert {letter["record"]["order_id"] for letter in before} == {0, 4, 8}
    first, second, third = (f"{each['partition']}/{each['entry']}" for each in before)
    shown = streamworker.does("dead", "show", "shop:price", first)
    assert shown == streamworker("dead", "show", "shop:price", str(before[0]["letter"])).stdout
    for part in ("ValueError: order", "amount is negative", "Order(order_id=", "by w1", "attempts: 1"):
        assert part in shown
    replayed = streamworker("dead", "replay", "shop:price", first, str(before[1]["letter"]))
    assert replayed.output.startswith('Replayed 2 of 2 dead letters to the group "price"')
    for gone, says in ((first, first), (str(before[1]["letter"]), "dead list")):
        again = streamworker("dead", "replay", "shop:price", gone)
        assert (again.exit_code, says in again.stderr) == (ExitCode.FAILED, True)
        assert "dead list" in streamworker("dead", "show", "shop:price", gone).stderr
    dropped = streamworker("dead", "drop", "shop:price", third, "--yes")
    assert dropped.output == "Dropped 1 of 1 dead letter.\n"
    assert letters(streamworker) == []
    again = streamworker("dead", "drop", "shop:price", second, "--yes")
    assert (again.exit_code, "1 did not exist." in again.stderr) == (ExitCode.FAILED, True)


def test_dropping_asks_first(stopped: None, streamworker: Invoke) -> None:
    """Without a terminal only with --yes; then they are gone."""
    refused = streamworker("dead", "drop", "shop:price", "--all")
    assert refused.exit_code == ExitCode.USAGE
    assert "--yes" in refused.stderr
    assert len(letters(streamworker)) == 3
    dropped = streamworker("dead", "drop", "shop:price", "--all", "--yes")
    assert "Dropped 3 of 3 dead letters." in dropped.stdout
    assert streamworker("dead", "list", "shop:price").stdout == "price has no dead letters.\n"
    none = streamworker("dead", "export", "shop:price")
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "There are no such dead letters.\n")
    assert streamworker("dead", "drop", "shop:price", "--all", "--yes").exit_code == ExitCode.FAILED


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("dead replay shop:price --all", r"Replayed [1-9]\d* dead letters?, and perhaps some of the next"),
        ("dead drop shop:price --all --yes", r"Dropped [1-9]\d* dead letters?, and perhaps some of the next"),
        ("reset shop:price --to earliest --yes", r"Moved [1-3] partitions? back by \d+ records?"),
    ],
)
def test_what_fails_in_the_middle_says_what_is_done(
    stopped: None, streamworker: Invoke, shop: Path, redis_url: str, command: str, said: str
) -> None:
    """Redis refuses the lock and the letters of the last partition: those before are done already."""
    last = max(each["partition"] for each in letters(streamworker))
    rest = [f"~sw:{{shop.orders.{p}}}:*" for p in range(last)]
    rest.append(f"~sw:{{shop.orders.{last}}}:[ec]*")  # the events and their counts, by a script that reads
    assert any(each["partition"] < last for each in letters(streamworker))
    with opened(redis_url) as raw:
        rules = ["on", ">any", "%R~*", "~sw:{shop.orders}:*", "~sw:{shop.orders:price}:*", *rest, "+@all"]
        raw.execute_command("ACL", "SETUSER", "some", *rules)
    rewrite(shop, SHOP)
    as_some = {"STREAMWORKER_REDIS_URL": url_of_user(redis_url, "some", "any")}
    result = streamworker(*command.split(), env=as_some)
    assert result.exit_code == ExitCode.REDIS, result.output
    assert re.search(said, result.stderr) and "Error: " in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "tail shop:orders",
        "peek shop:price",
        "later list shop:orders",
        "dead list shop:price",
        "dead export shop:price",
        "dead replay shop:price --all",
        "dead drop shop:price --all --yes",
        "reset shop:price --to earliest --yes",
        "pause shop:price",
    ],
)
def test_some_partitions_are_not_taken_for_all(
    stopped: None, streamworker: Invoke, shop: Path, command: str
) -> None:
    """A program that declares fewer than the stream has would do a part, and call it the whole."""
    rewrite(shop, SHOP.replace("partitions=4", "partitions=2"))
    refused = streamworker(*command.split())
    assert (refused.exit_code, refused.stdout) == (ExitCode.CONFIGURATION, "")
    assert "has partitions=4 in Redis and 2 in the app" in refused.stderr
    rewrite(shop, SHOP)
    assert len(letters(streamworker)) == 3


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("dead show shop:price 7", "PARTITION/ID"),
        ("dead show shop:price a/1-0", "PARTITION/ID"),
        ("dead show shop:price 0/x", "x"),
        ("dead show shop:price 9/1-0", "partitions 0 to 3, and not 9"),
        ("dead drop shop:price", "Give the letters, or --all."),
        ("dead drop shop:price 0/1-0 --all", "Give the letters, or --all."),
        ("dead replay shop:price", "or --error and --since."),
        ("dead replay shop:price 0/1-0 --all", "or --error and --since."),
        ("dead replay shop:price --all --since 1h", "or --error and --since."),
        ("dead replay shop:price --all --from x", "or --error and --since."),
        ("dead replay shop:price --error E --from x", "or --error and --since."),
        ("dead replay shop:price --from nowhere", "No such file"),
        ("reset shop:price --to yesterday", "neither earliest, latest"),
        ("reset shop:price --to -", "neither earliest, latest"),
        ("reset shop:price --to 12:00", "neither earliest, latest"),
        ("reset shop:price --to latest --partition 4", "partitions 0 to 3, and not 4"),
    ],
)
def test_a_wrong_command_line_changes_nothing_and_says_what_is_meant(
    streamworker: Invoke, arguments: str, why: str
) -> None:
    """Also where somebody forgot an argument, or gave two that contradict each other."""
    result = streamworker(*arguments.split())
    assert (result.exit_code, why in " ".join(result.output.split())) == (ExitCode.USAGE, True), result.output


def test_reset_runs_records_again_or_leaves_them_out(stopped: None, streamworker: Invoke) -> None:
    """To the earliest everything waits again; to the latest nothing does. `history` says who did it."""
    would_move_all_back(streamworker)
    asked = streamworker("reset", "shop:price", "--to", "earliest")
    assert asked.exit_code == ExitCode.USAGE
    assert lag(streamworker) == 0
    assert "reset" not in streamworker("history", "shop:price").stdout
    back = streamworker("reset", "shop:price", "--to", "earliest", "--yes", env={"LOGNAME": "ann"})
    assert back.exit_code == ExitCode.OK, back.output
    assert "Moved 4 partitions back by 12 records" in back.stdout
    assert lag(streamworker) == 12
    (told,) = [line for line in streamworker("history", "shop:price").stdout.splitlines() if "reset" in line]
    assert 'ann "to earliest"' in told and told.endswith("0-3")
    ahead = streamworker("reset", "shop:price", "--to", "latest", "--yes")
    assert " to run again" in back.stdout and " to skip" in ahead.stdout
    assert "Moved 4 partitions ahead by 12 records" in ahead.stdout
    assert lag(streamworker) == 0


def test_a_reset_says_that_state_is_not_undone_where_there_is_some(
    stopped: None, streamworker: Invoke, redis_url: str
) -> None:
    """What the processor's timers keep beside it is no state of the function."""
    dry = ("reset", "shop:price", "--to", "earliest", "--dry-run")
    with opened(redis_url) as raw:
        raw.hset("sw:{shop.orders.0}:state:price", "\0ran:flush", "{}")
        assert "state" not in streamworker(*dry).stdout
        raw.hset("sw:{shop.orders.0}:state:price", "seen", "7")
    assert "The state holds what was counted since, and is not undone." in streamworker(*dry).stdout


def test_a_reset_that_would_change_nothing_fails(stopped: None, streamworker: Invoke, redis_url: str) -> None:
    """It does not claim that something moved: all that the stream held was read, and went."""
    assert streamworker("reset", "shop:price", "--to", "latest", "-y").exit_code == ExitCode.FAILED
    trim(redis_url)
    for to in ("earliest", "latest"):
        result = streamworker("reset", "shop:price", "--to", to, "--yes")
        assert (result.exit_code, "Moved" in result.output) == (ExitCode.FAILED, False)
        assert "Nothing would run again" in result.stderr


def test_a_time_before_the_oldest_entry_is_refused(
    stopped: None, streamworker: Invoke, redis_url: str
) -> None:
    """The message says what is kept and since when there are entries; nothing was moved."""
    with opened(redis_url) as raw:
        raw.hset("sw:{shop.orders}:stream", "retention", "7 days")
    trim(redis_url, leave=1)
    result = streamworker("reset", "shop:price", "--to", "2020-01-01T00:00Z", "--yes")
    assert result.exit_code == ExitCode.FAILED
    assert "Stream 'orders' keeps 7 days; the oldest entry is of 20" in result.stderr
    assert "Nothing was changed." in result.stderr
    assert "Use --to earliest" in result.stderr
    assert lag(streamworker) == 0
    streamworker.does("reset", "shop:price", "--to", "earliest", "--yes")
    assert 0 < lag(streamworker) < 12
    streamworker.does("reset", "shop:price", "--to", "latest", "--yes")
    trim(redis_url)
    result = streamworker("reset", "shop:price", "--to", "2020-01-01T00:00Z", "--yes")
    assert "no entry is left" in result.stderr and "Use --to earliest" not in result.stderr


def trim(redis_url: str, *, leave: int = 0) -> None:
    """Drop entries of each partition, as a worker does, and leave the newest."""
    with opened(redis_url) as raw:
        for partition in range(4):
            key = f"sw:{{shop.orders.{partition}}}"
            dropped = raw.xtrim(f"{key}:events", maxlen=leave, approximate=False)
            raw.hincrby(f"{key}:counts", "dropped", dropped)


def test_reset_to_a_time_or_an_entry_of_one_partition(stopped: None, streamworker: Invoke) -> None:
    """A time in the past is the earliest, one in the future the latest: no entry to come is left out."""
    past = streamworker.does("reset", "shop:price", "--to", "2020-01-01T00:00Z", "-y")
    assert "before 1577836800000-0" in past and "18446744073709551615" not in past
    assert "before 1577836800000-0" in streamworker("status", "shop:price").stdout
    assert lag(streamworker) == 12
    streamworker.does("reset", "shop:price", "--to", "2200-01-01T00:00Z", "-y")
    assert lag(streamworker) == 0
    snapshot = streamworker.tells("status", "shop:price")[0]
    entry = snapshot["partitions"][2]["checkpoint"]
    result = streamworker("reset", "shop:price", "--to", entry, "--partition", "2", "-y")
    assert result.exit_code == ExitCode.FAILED, result.output
    assert lag(streamworker) == 0


def test_where_a_reset_may_go_to() -> None:
    """A time means the first entry at or after it, so the checkpoint is the end of the ms before."""
    assert parse_target("earliest") == ZERO
    assert parse_target("latest") is None
    assert parse_target("1769860800000-3") == EntryId(1769860800000, 3)
    assert parse_target("1970-01-01T00:00:01Z") == EntryId(999, SEQUENCE_MAX)


def test_the_dead_rows_of_an_entry_of_columns_are_shown_as_records(
    shop: Path, streamworker: Invoke, redis_url: str
) -> None:
    """And not as bytes; each is a letter of its own, and is replayed as any other."""
    module = (shop / "shop.py").read_text("utf-8")
    (shop / "shop.py").write_text(module.replace("=4)", '=1, codec="arrow")'), "utf-8")
    lines = "\n".join(json.dumps({"order_id": n, "customer": "ann", "amount": -1.0}) for n in range(3))
    streamworker.does("send", "shop:orders", "-", input=lines)
    work_off(redis_url)
    found = letters(streamworker)
    assert [row["order_id"] for letter in found for row in letter["record"]] == [2, 1, 0]
    shown = streamworker("dead", "show", "shop:price", str(found[1]["letter"])).stdout
    assert "Order(order_id=1," in shown
    assert re.search(r"field +v = [\d,]+ bytes", shown)
    exported = [json.loads(line) for line in streamworker("dead", "export", "shop:price").stdout.splitlines()]
    exported[0]["record"][0]["amount"] = 2.0
    (shop / "letters.jsonl").write_text("\n".join(map(json.dumps, exported)), "utf-8")
    assert "Replayed 3 of 3" in streamworker("dead", "replay", "shop:price", "--from", "letters.jsonl").stdout
    work_off(redis_url)
    assert [row["order_id"] for letter in letters(streamworker) for row in letter["record"]] == [2, 1]
