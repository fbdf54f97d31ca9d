"""`doctor` names what is not well in Redis and what to do; `repair` does it, and harms nothing that lives."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
import redis

from streamworker.cli.doctor.checks import Check
from streamworker.cli.doctor.command import in_redis
from streamworker.cli.doctor.groups import of_partitions
from streamworker.cli.doctor.server import persistence, user_rights
from streamworker.cli.exit_codes import ExitCode
from streamworker.core.snapshot import RetryView
from streamworker.importing import resolve_app
from streamworker.redisio.admin.health import SAMPLES, Rights
from streamworker.redisio.admin.rights import ROLES, acl_rules
from streamworker.redisio.group.locks import foreign_lock
from streamworker.redisio.scripts import wrong_type
from streamworker.redisio.wire.info import ServerInfo, read_info
from streamworker.spark.source.logs import INSPECT_REMEDY, LOSS_REMEDY
from streamworker.tui.figures import memory
from tests.cli.conftest import SHOP, Invoke, rewrite, work_off
from tests.conftest import SpawnWorker
from tests.contract.support import everything, url_of_user
from tests.helpers import wait_for
from tests.tui import groups

QUICK = {
    "STREAMWORKER_HEARTBEAT_INTERVAL_MS": "100",
    "STREAMWORKER_CALL_TIMEOUT_MS": "1000",
    "STREAMWORKER_DEAD_AFTER_MS": "300",
    "STREAMWORKER_SESSION_TIMEOUT_MS": "3000",
    "STREAMWORKER_FOUNDING_PAUSE_MS": "1",
}
"""A member counts as silent soon, so that the test need not wait."""


@pytest.fixture
def raw(redis_url: str) -> redis.Redis:
    """The server, as it is."""
    return redis.Redis.from_url(redis_url)


def in_doctor() -> list[Check]:
    """What `doctor shop:app` says of Redis; it looks for Java besides."""
    found = anyio.run(in_redis, resolve_app("shop:app"), "shop:app")
    assert all(check.remedy for check in found if check.verdict != "ok")
    return found


def checks() -> dict[str, Check]:
    """The same, by the name of the check."""
    return {check.name: check for check in in_doctor()}


def plan(streamworker: Invoke, *arguments: str) -> Any:
    """What `repair` would do."""
    return streamworker.tells("repair", "shop:app", "--dry-run", *arguments)


def silent(raw: "redis.Redis") -> bool:
    """Whether the only member's last heartbeat is as old as the session timeout."""
    seconds, micros = raw.time()
    beats: Any = raw.hvals("sw:{shop.orders:price}:beats")
    (beat,) = beats
    return seconds * 1000 + micros // 1000 - int(beat.split(b"|")[0]) > 3_000


def test_a_live_group_is_left_alone_and_a_dead_one_is_tidied_up(
    streamworker: Invoke, spawn: SpawnWorker, raw: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that sleeps: its connection is there. Of one that died the name goes, and its locks."""
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    worker = spawn("run", "shop:price", "--name", "w1")
    wait_for(lambda: "partitions_started" in worker.log(), "it has begun", 60)
    before = raw.get("sw:{shop.orders:price}:members")
    result = streamworker("repair", "shop:app", "--yes")
    assert (result.exit_code, result.stdout) == (ExitCode.OK, "There is nothing to repair.\n")

    worker.pause()
    wait_for(lambda: silent(raw), "it is silent")
    assert plan(streamworker) == []
    doubtful = streamworker("repair", "shop:app", "--yes")
    assert (doubtful.exit_code, doubtful.stdout) == (ExitCode.OK, "Nothing else is to repair.\n")
    assert doubtful.stderr == "Member w1 of price is silent, and is connected: it may live, and stays.\n"
    worker.resume()
    wait_for(lambda: not silent(raw), "it is back")
    assert raw.get("sw:{shop.orders:price}:members") == before

    worker.kill()
    wait_for(lambda: silent(raw), "it is silent for good")
    said = checks()
    assert "silent: w1" in said["group price"].found
    assert "streamworker repair shop:app" in said["group price"].remedy
    there = everything(raw)
    assert [step["action"] for step in plan(streamworker)] == ["remove members", "release locks"]
    refused = streamworker("repair", "shop:app")
    assert (refused.exit_code, "--yes" in refused.stderr) == (ExitCode.USAGE, True)
    assert everything(raw) == there

    done = streamworker("repair", "shop:app", "--yes", "--json")
    assert [step["outcome"] for step in json.loads(done.stdout)] == ["done", "done"]
    assert plan(streamworker) == []
    snapshot = streamworker.tells("status", "shop:price")[0]
    assert snapshot["members"] == []
    assert {view["owner"] for view in snapshot["partitions"]} == {None}
    told = streamworker.tells("history", "shop:price")
    assert [(each["cause"], each["moved"]) for each in told[-2:]] == [
        ("repair", []),
        ("repair", [0, 1, 2, 3]),
    ]
    assert told[-2]["member"] == "w1"
    assert told[-1]["member"].startswith("release locks by ")


def test_each_kind_of_trouble_of_partitions_is_told_by_its_first_one() -> None:
    """One that halted does not hide what is tried again, held up or without an owner."""
    now = groups.group(partitions=5, workers=1, lag=1)
    halted, failing, slow, left, well = now.partitions
    views = (
        replace(halted, state="halted", reason="ValueError"),
        replace(failing, state="retrying", reason="OSError", retry=RetryView(3, 90_000, 110_000)),
        replace(slow, reason="outbox full"),
        replace(left, state="unowned", owner=None),
        well,
    )
    told = [(check.verdict, check.found) for check in of_partitions(replace(now, partitions=views))]
    assert [verdict for verdict, _ in told] == ["fail", "warn", "warn", "warn"]
    for (_, found), says in zip(
        told, ("0: ValueError", "1 since ", "2: outbox full", "owner: 3"), strict=True
    ):
        assert says in found
    assert [check.found for check in of_partitions(now)] == ["none halted or held up"]


def test_a_schema_that_is_gone_is_named(streamworker: Invoke, raw: "redis.Redis", redis_url: str) -> None:
    """A group that has never run needs none yet; of one that has run nobody could read the log.

    That workers store it again is in tests/runtime/test_schemas.py.
    """
    key = "sw:{shop.orders:price}:schemas"
    assert checks()["schema of price"].verdict == "ok"
    assert "schema of audit" not in checks()
    work_off(redis_url)
    said = checks()["schema of price"]
    assert (said.verdict, said.found) == ("ok", "1 stored")
    for damage in (lambda: raw.hdel(key, "current"), lambda: raw.delete(key)):
        damage()
        said = checks()["schema of price"]
        assert (said.verdict, key in said.found) == ("fail", True)
        assert "within 2 s" in said.remedy
        assert "of that version" in said.remedy
    assert streamworker("doctor", "shop:app").exit_code == ExitCode.FAILED


def unwell(raw: "redis.Redis") -> None:
    """Leave all kinds of things behind: a dead owner, a reader, a full log, a group of long ago."""
    raw.hset("sw:{shop.orders}:stream", mapping={"app": "shop", "stream": "orders", "partitions": 4})
    document = {"v": 1, "partitions": 4, "strategy": "range", "members": [], "owners": [None] * 4}
    raw.set("sw:{shop.orders:price}:members", '{"generation":7,' + json.dumps(document)[1:])
    for p in range(4):
        raw.xadd(f"sw:{{shop.orders.{p}}}:events", {"v": "{}"}, id="1-0")
        for group in ("price", "audit", "old"):
            raw.xgroup_create(f"sw:{{shop.orders.{p}}}:events", group, "0-0")
            lock: dict[Any, Any] = {
                "owner": "",
                "epoch": "5",
                "checkpoint": "0-0",
                "rows": "100",
                "log": "L",
                "since": "1",
            }
            raw.hset(f"sw:{{shop.orders.{p}}}:lock:{group}", mapping=lock)
        for row in (50, 100):
            raw.xadd(f"sw:{{shop.orders.{p}}}:acked:price", {"rows": 50}, id=f"{row}-0")
        raw.xadd(f"sw:{{shop.orders.{p}}}:dead:old", {"id": "1-0"})
    raw.hset("sw:{shop.orders.2}:lock:price", "owner", "w9.dead")


def test_doctor_names_what_was_left_behind_and_repair_takes_it_away_when_it_is_named(
    streamworker: Invoke, raw: "redis.Redis", shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What holds unread rows goes only by an option, and nothing else goes with it.

    The user of a container may have no name; the history has the number.
    """
    monkeypatch.setattr("getpass.getuser", Mock(side_effect=KeyError("uid not found")))
    unwell(raw)
    said = checks()
    verdicts = {name: said[name].verdict for name in ("stream orders: old", "locks price", "log price")}
    assert set(verdicts.values()) == {"warn"}, verdicts
    assert "4 records" in said["stream orders: old"].found
    assert "w9.dead, no member any more: partitions 2" in said["locks price"].found
    assert "nobody reads it: 8 entries of " in said["log price"].found and " kB" in said["log price"].found
    assert "forward=False" in said["log price"].remedy and "log_retention=" in said["log price"].remedy
    assert "no members, lag 4" in said["group price"].found
    # Any client can make a group of any name, and people paste the command into a shell.
    raw.xgroup_create("sw:{shop.orders.0}:events", "a; touch b", "0-0")
    remedy = checks()["stream orders: a; touch b"].remedy
    assert remedy.endswith("streamworker repair shop:app --forget-group 'a; touch b'")
    raw.xgroup_destroy("sw:{shop.orders.0}:events", "a; touch b")

    assert [step["action"] for step in plan(streamworker)] == ["release locks"]
    done = streamworker("repair", "shop:app", "--yes", "--forget-group", "old")
    assert done.exit_code == ExitCode.OK, done.output
    assert "release locks of price: done" in done.stdout
    assert not raw.keys("*:old")
    assert {g["name"] for g in raw.xinfo_groups("sw:{shop.orders.0}:events")} == {b"price", b"audit"}
    assert raw.xlen("sw:{shop.orders.0}:events") == 1
    assert raw.hget("sw:{shop.orders.2}:lock:price", "owner") == b""
    assert int(raw.hget("sw:{shop.orders.2}:lock:price", "epoch") or 0) > 5
    newest: Any = raw.xrevrange("sw:{shop.orders:price}:control", count=1)
    assert newest[0][1][b"by"].startswith(b"uid %d@" % os.getuid())
    none = streamworker("repair", "shop:app", "--yes", "--accept-targets", "price")
    assert (none.exit_code, "Nothing was changed." in none.stderr) == (ExitCode.FAILED, True)
    gone = streamworker("repair", "shop:app", "--yes", "--forget-group", "old")
    assert (gone.exit_code, "has a group 'old'" in gone.stderr) == (ExitCode.FAILED, True)


def test_doctor_names_a_log_that_is_ahead_of_its_lock_and_repair_mends_it(
    streamworker: Invoke, raw: "redis.Redis", shop: Path
) -> None:
    """Nobody is told to delete it: it holds what was committed."""
    unwell(raw)
    acked = "sw:{shop.orders.1}:acked:price"
    before: Any = raw.xrange(acked)
    foreign: Any = raw.xadd(acked, {"foo": "bar"})
    said = next(check for check in in_doctor() if "is ahead of its lock" in check.found)
    assert (said.name, said.verdict) == ("log price", "fail")
    assert f"{acked} is ahead of its lock: its last id is {foreign.decode()}" in said.found
    assert "`streamworker repair shop:app` lets" in said.remedy and "Do not delete" in said.remedy
    (step,) = [step for step in plan(streamworker) if step["action"] == "repair log"]
    assert (step["partitions"], step["why"]) == ([1], f"its lock does not know of {foreign.decode()}")
    assert raw.xlen(acked) == len(before) + 1, "a plan changes nothing"
    done = streamworker("repair", "shop:app", "--yes")
    assert "repair log of price: done\n" in done.stdout
    after: Any = raw.xrange(acked)
    assert after[:-1] == before
    message: Any = raw.xrevrange("sw:{shop.orders:price}:control")
    assert {(fields[b"what"], fields[b"partitions"]) for _, fields in message} >= {(b"repair log", b"1")}
    again = streamworker("repair", "shop:app", "--yes")
    assert again.stdout == "There is nothing to repair.\n"


def test_no_remedy_advises_to_delete_what_may_hold_committed_rows(raw: "redis.Redis", shop: Path) -> None:
    """A key of another type, or with other fields, may be a lock or a log that somebody spoiled."""
    unwell(raw)
    raw.delete("sw:{shop.orders.0}:acked:price")
    raw.set("sw:{shop.orders.0}:acked:price", "x")
    raw.hset("sw:{shop.orders.1}:lock:price", "checkpoint", "x")
    remedies = [check.remedy for check in in_doctor() if check.verdict == "fail"]
    remedies += [
        wrong_type("key").remedy,
        foreign_lock(0, ValueError("x")).remedy,
        INSPECT_REMEDY,
        LOSS_REMEDY,
    ]
    for remedy in remedies:
        advised = remedy.replace("Do not delete", "").replace("Delete nothing", "")
        assert not re.search(r"\b([Dd]elete|DEL|UNLINK|FLUSH\w*)\b", advised), remedy


def test_a_stream_that_nothing_ends_is_named_with_its_rate(
    raw: "redis.Redis", shop: Path, streamworker: Invoke
) -> None:
    """No group reads it, it has no retention, and so it grows until the memory is full."""
    module, more = shop / "shop.py", 'app.stream("billed", Order, partitions=2)\n'
    module.write_text(module.read_text("utf-8") + more, "utf-8")
    raw.xadd("sw:{shop.orders.0}:events", {"v": "1"}, id="1-0")
    assert "stream billed: unread" not in checks(), "it is empty"
    now_ms, key = raw.time()[0] * 1000, "sw:{shop.billed.1}:events"
    for age_ms in range(7_200_000, 0, -7_200):
        raw.xadd(key, {"v": "x" * 1_000}, id=f"{now_ms - age_ms}-0")
    found = checks()
    assert "stream orders: unread" not in found, "its processors will read it"
    said, size = found["stream billed: unread"], memory(raw.memory_usage(key))
    begin = f"no group reads it, and no retention ends what it keeps: {size}, "
    assert (said.verdict, said.found.startswith(begin), said.found[-11:]) == ("warn", True, " more a day")
    assert "Full at today's rate: in" in found["memory forecast"].found
    lines = streamworker("status", "shop:app").stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("stream") and "billed" in line]
    assert line.endswith("everything: no group reads it")
    assert "Full at today's rate: in" in lines[-1]
    (told, _) = streamworker.tells("status", "shop:app")
    assert [each["name"] for each in told["held"]["holdings"] if each["kind"] == "stream"] == [
        "orders",
        "billed",
    ]
    raw.xgroup_create(key, "theirs", id="0")
    assert "stream billed: unread" not in checks(), "a group of another program reads it"


@pytest.mark.parametrize("trouble", ["no history", "no memory"])
def test_a_repair_goes_on_where_the_history_cannot_be_written_and_says_so(
    streamworker: Invoke, raw: "redis.Redis", shop: Path, trouble: str
) -> None:
    """It ended after the first step, without a word of what it had done, and before one that makes room."""
    unwell(raw)
    control = "sw:{shop.orders:price}:control"
    if trouble == "no history":
        raw.delete(control)
        raw.set(control, "mine")
    else:
        raw.config_set("maxmemory", "1")
    done = streamworker("repair", "shop:app", "--yes")
    raw.config_set("maxmemory", "1gb")
    assert done.exit_code == ExitCode.OK, done.output
    missing = "the history does not have it: " + (
        f"{control} is no stream" if trouble == "no history" else ""
    )
    assert f"release locks of price: done; {missing}" in done.stdout
    assert raw.hget("sw:{shop.orders.2}:lock:price", "owner") == b""
    assert trouble != "no history" or raw.get(control) == b"mine"


@pytest.mark.parametrize("form", ["lines", "json"])
def test_a_repair_that_fails_in_the_middle_says_what_is_done(
    streamworker: Invoke, raw: "redis.Redis", shop: Path, redis_url: str, form: str
) -> None:
    """Redis refuses the dead letters of a group to forget; the locks of another are released before."""
    unwell(raw)
    rules = ["on", ">any", "%R~*", "~sw:{shop.orders*}:[^d]*", "~sw:{shop.orders*}:damaged*", "+@all"]
    raw.execute_command("ACL", "SETUSER", "some", *rules)
    rewrite(shop, SHOP)
    as_some = {"STREAMWORKER_REDIS_URL": url_of_user(redis_url, "some", "any")}
    arguments = ("repair", "shop:app", "--yes", "--forget-group", "old")
    result = streamworker(*arguments, *(["--json"] if form == "json" else []), env=as_some)
    assert (result.exit_code, "NOPERM" in result.stderr) == (ExitCode.REDIS, True), result.output
    if form == "lines":
        assert result.stdout.endswith("release locks of price: done\n")
    else:
        outcomes = [step["outcome"] for step in json.loads(result.stdout)]
        assert outcomes == ["done", "not tried, or not known to be done"]


def test_a_reader_that_rests_is_named_and_forgotten_only_when_it_is_gone(
    streamworker: Invoke, raw: "redis.Redis", shop: Path
) -> None:
    """One that moved a moment ago is at work, whoever says otherwise."""
    unwell(raw)
    readers = "sw:{shop.orders:price}:readers"
    raw.hset(readers, "spark", '{"p":{"0":50},"log":{"0":"L"},"at":1000}')
    reader = checks()["reader spark of price"]
    assert (reader.verdict, "350 rows behind" in reader.found) == ("warn", True)
    assert "--forget-reader spark" in reader.remedy
    seconds, _ = raw.time()
    raw.hset(readers, "spark", json.dumps({"p": {"0": 50}, "log": {"0": "L"}, "at": seconds * 1000}))
    assert checks()["reader spark of price"].verdict == "ok"
    refused = streamworker("repair", "shop:app", "--yes", "--forget-reader", "spark")
    assert (refused.exit_code, "its query runs" in refused.stderr) == (ExitCode.FAILED, True)
    raw.hset(readers, "spark", '{"p":{"0":50},"log":{"0":"L"},"at":1000}')
    taken = "sw:{shop.orders.1}:taken"
    raw.hset(taken, mapping={"pipeline spark": "7-", "pipeline spark/high": "7-", "pipeline sparks": "7-"})
    done = streamworker("repair", "shop:app", "--yes", "--forget-reader", "spark")
    assert "forget reader of price: done" in done.stdout
    assert not raw.exists(readers)
    assert raw.hkeys(taken) == [b"pipeline sparks"]
    assert raw.xlen("sw:{shop.orders.0}:acked:price") == 2


def test_what_was_put_aside_in_place_of_a_membership_is_named_and_stays(
    streamworker: Invoke, raw: "redis.Redis", shop: Path
) -> None:
    """Nothing is said where there is none; a repair leaves it to be looked at."""
    unwell(raw)
    assert "membership price" not in checks()
    kept = "sw:{shop.orders:price}:damaged"
    raw.set(kept, "x" * 1_200)
    said = checks()["membership price"]
    assert (said.verdict, "a string of 1,200 bytes" in said.found, kept in said.found) == ("warn", True, True)
    assert f"UNLINK {kept}" in said.remedy
    streamworker.does("repair", "shop:app", "--yes")
    assert raw.exists(kept)


def test_a_group_that_the_app_declares_is_not_forgotten(invoke: Invoke) -> None:
    """Refused before Redis is asked."""
    refused = invoke("repair", "shop:app", "--forget-group", "price")
    assert (refused.exit_code, "declares the processor" in refused.stderr) == (ExitCode.CONFIGURATION, True)
    assert invoke("repair", "shop:app", "--accept-targets", "prize").exit_code == ExitCode.CONFIGURATION
    assert invoke("repair", "shop:app", "--json").exit_code == ExitCode.USAGE


@pytest.mark.parametrize("key", ["sw:{shop.orders.3}:state:price", "sw:{shop.orders:audit}:members"])
def test_a_key_of_another_type_is_named_and_hides_no_other_check(
    streamworker: Invoke, raw: "redis.Redis", shop: Path, key: str
) -> None:
    """Each key that the app can have is looked at, and nothing is walked over."""
    raw.rpush(key, "mine")
    raw.config_resetstat()
    said = checks()
    assert f"{key} holds a list" in said["keys"].found
    assert said["stream orders"].verdict == "ok"
    assert {"group price", "group audit"} < set(said)
    calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in raw.info("commandstats").items()}
    assert not {"keys", "scan"} & set(calls)
    writes = {"set", "hset", "hdel", "del", "unlink", "xadd", "xtrim", "expire"}
    assert not writes & set(calls)


@pytest.mark.parametrize("name", ["readers", "beats", "control"])
def test_nothing_is_advised_by_what_a_key_would_say_that_another_program_wrote_over(
    streamworker: Invoke, raw: "redis.Redis", shop: Path, name: str
) -> None:
    """Without its readers a log looks as if nobody read it, and without heartbeats all members look dead."""
    key = f"sw:{{shop.orders:price}}:{name}"
    raw.delete(key)
    raw.set(key, "mine")
    report = streamworker("doctor", "shop:app", "--json")
    about = [each for each in json.loads(report.stdout) if "price" in each["name"]]
    wrong = [each for each in about if each["verdict"] != "ok"]
    assert [(each["verdict"], key in each["found"]) for each in wrong] == [("fail", True)]
    assert not [each for each in about if "repair" in each["remedy"]]


# -- what the server can lose, and what a user may do --------------------------------------------


def info(**fields: object) -> ServerInfo:
    """What a server says, here only as much as matters."""
    return read_info("\r\n".join(f"{name}:{value}" for name, value in fields.items()).encode())


@pytest.mark.parametrize(
    "server, settings, verdict, found",
    [
        (info(aof_enabled=1), {"appendfsync": "always"}, "ok", "nothing that was confirmed"),
        (info(aof_enabled=1), {"appendfsync": "everysec"}, "ok", "about the last second"),
        (info(aof_enabled=1), {"appendfsync": "no"}, "warn", "about the last half minute"),
        (info(aof_enabled=1), None, "ok", "this user may not read appendfsync"),
        (info(aof_enabled=1, aof_last_write_status="ok"), None, "ok", "this user may not read appendfsync"),
        (info(aof_enabled=1, aof_last_write_status="err"), None, "fail", "cannot be written"),
        (info(aof_enabled=0), {"save": "3600 1 300 100"}, "warn", "last snapshot, up to 3,600 s"),
        (info(aof_enabled=0), {"save": ""}, "warn", "everything: neither"),
        (info(aof_enabled=0), None, "warn", "if it makes any"),
        (info(aof_enabled=0), {"appendonly": "no"}, "warn", "if it makes any"),
        (info(aof_enabled=1, connected_slaves=2), None, "ok", "replicas, what that had not received."),
        (info(aof_enabled=1), {"appendfsync": "always"}, "ok", "it has no replica"),
        (
            info(aof_enabled=1, connected_slaves=2),
            {"appendfsync": "always", "min-replicas-to-write": "0"},
            "ok",
            "writes go on without a connected replica",
        ),
        (
            info(aof_enabled=1, connected_slaves=2),
            {"appendfsync": "always", "min-replicas-to-write": "1"},
            "ok",
            "what 1 of 2 replicas had not received",
        ),
    ],
)
def test_what_the_server_can_lose_is_said_in_words(
    server: ServerInfo, settings: dict[str, str] | None, verdict: str, found: str
) -> None:
    """As it is set up, and not as one hopes."""
    check = persistence(server, settings)
    assert check.verdict == verdict
    assert found in check.found


@pytest.mark.parametrize("command", ["type", "xinfo"])
def test_doctor_takes_no_refusal_for_a_key_that_is_well(
    streamworker: Invoke, raw: "redis.Redis", redis_url: str, shop: Path, command: str
) -> None:
    """What the user may not look at is named as a failure, and not as well, or as no group at all."""
    unwell(raw)
    raw.execute_command("ACL", "SETUSER", "some", "on", ">any", "~*", "+@all", f"-{command}")
    rewrite(shop, SHOP)
    as_some = {"STREAMWORKER_REDIS_URL": url_of_user(redis_url, "some", "any")}
    found = json.loads(streamworker("doctor", "shop:app", "--json", env=as_some).stdout)
    (check,) = [each for each in found if each["name"] == ("keys" if command == "type" else "stream orders")]
    assert (check["verdict"], "NOPERM" in check["found"]) == ("fail", True)
    if command == "xinfo":
        forget = streamworker("repair", "shop:app", "--yes", "--forget-group", "nobody", env=as_some)
        assert (forget.exit_code, "has a group" in forget.stderr) == (ExitCode.REDIS, False)


def test_every_command_of_a_role_is_asked_about() -> None:
    """A role that gets a new command is not overlooked."""
    commands = {
        command for role in ROLES for grant in (role.root, *role.selectors) for command in grant.commands
    }
    assert commands <= set(SAMPLES)


def test_the_rights_of_the_user_are_told(
    streamworker: Invoke, raw: "redis.Redis", redis_url: str, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker needs and this one has not; and a user who may not ask is told how to compare."""
    said = checks()
    assert "worker, producer, reader" in said["rights"].found
    assert "everything: neither an append-only file nor snapshots" in said["persistence"].found
    asks = ["+acl|whoami", "+acl|dryrun"]
    for name, more in (("narrow", asks), ("plain", [])):
        rules = acl_rules("shop", "worker" if more else "operator")
        raw.execute_command(
            "ACL", "SETUSER", name, "on", ">secret", *rules, *more, *(["-xtrim"] if more else [])
        )
    try:
        monkeypatch.setenv("STREAMWORKER_REDIS_URL", url_of_user(redis_url, "narrow", "secret"))
        del sys.modules["shop"]  # it has read its settings
        rights = checks()["rights"]
        assert "user narrow lacks rights that a worker needs: XTRIM" in rights.found
        assert "the rights of: " in rights.found
        monkeypatch.setenv("STREAMWORKER_REDIS_URL", url_of_user(redis_url, "plain", "secret"))
        del sys.modules["shop"]
        said = checks()
        assert (said["rights"].verdict, said["keys"].verdict) == ("warn", "ok")
        assert "if it makes any" in said["persistence"].found
        assert not [name for name, check in said.items() if check.verdict == "fail"]
    finally:
        raw.execute_command("ACL", "DELUSER", "narrow", "plain")


def test_a_user_without_any_role_fails() -> None:
    """A worker that cannot work is no matter of taste."""
    missing = {role.name: ("HSET a", "XADD b", "C", "D", "E", "F") for role in ROLES}
    check = user_rights(Rights("nobody", missing))
    assert (check.verdict, "C, D and 2 more" in check.found) == ("fail", True)
