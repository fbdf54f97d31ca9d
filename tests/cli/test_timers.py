"""`timers` shows when timers run, and `timers run-now` lets one run at once."""

from pathlib import Path

import redis

from streamworker.cli.exit_codes import ExitCode
from streamworker.redisio.keys import GroupKeys
from tests.cli.conftest import SHOP, Invoke
from tests.conftest import SpawnWorker
from tests.helpers import wait_for

TIMED = f"""{SHOP}

from datetime import datetime
from pathlib import Path


@app.cron("0 6 1 1 *", tz="Europe/Paris", missed="once")
async def greet(at: datetime) -> None:
    Path("greeted").write_text(str(at))


@pricing.timer(every="1 hour", when="caught up")
async def flush() -> None: ...
"""


def test_timers_are_shown_with_their_last_and_next_time_and_run_on_demand(
    shop: Path, streamworker: Invoke, spawn: SpawnWorker
) -> None:
    (shop / "shop.py").write_text(TIMED, "utf-8")
    early = streamworker("timers", "run-now", "shop:greet")
    assert early.exit_code == ExitCode.FAILED
    assert early.output == (
        "Error: No worker has run 'greet' yet.\nThe first worker that starts will run it at once.\n"
    )
    worker = spawn("run", "shop:app", "--name", "w1")
    wait_for((shop / "greeted").exists, "the first worker runs it at once")

    (shop / "greeted").unlink()
    asked = streamworker("timers", "run-now", "shop:greet")
    assert asked.exit_code == 0, asked.output
    assert asked.output == "Timer greet ran.\n"
    assert (shop / "greeted").exists()
    everywhere = streamworker("timers", "run-now", "shop:flush")
    assert everywhere.output == "Timer flush ran in 4 partitions of orders.\n"

    lines = streamworker("timers", "shop:app").output.splitlines()
    assert lines[0].split() == ["timer", "runs", "on", "last", "next", "took", "failing"]
    assert "At 06:00 on January 1, Europe/Paris" in lines[1] and "-01-01 06:00:00+01:00" in lines[1]
    assert "every hour, when caught up" in lines[2] and "each partition of price" in lines[2]
    assert "(4 of 4 partitions)" in lines[2]
    greet, flush = streamworker.tells("timers", "list", "shop:app")
    assert (greet["timer"], greet["on"], greet["missed"]) == ("greet", "app", "once")
    assert greet["took"].rpartition("by ")[2] == "w1"
    assert flush["next"] > flush["last"][:19]

    worker.terminate()
    assert worker.wait() == 0
    alone = streamworker("timers", "run-now", "shop:greet", "--wait", "100 milliseconds")
    assert alone.exit_code == ExitCode.FAILED
    assert "It has not run within 0.1 s: no worker is there. The request stands" in alone.output


def test_run_now_says_why_a_timer_has_not_run_and_takes_no_lost_request_for_a_call(
    shop: Path, streamworker: Invoke, spawn: SpawnWorker, redis_url: str
) -> None:
    """It ran where Redis holds its call; that nobody waits for one any more is no call."""
    (shop / "shop.py").write_text(TIMED, "utf-8")
    worker = spawn("run", "shop:price", "--name", "w1")
    wait_for(lambda: "Timer flush ran in 4" in streamworker("timers", "run-now", "shop:flush").output, "runs")
    streamworker.does("pause", "shop:price", "--partition", "3")
    paused = streamworker("timers", "run-now", "shop:flush", "--wait", "2 seconds")
    assert "Timer flush ran in 3 partitions of orders." in paused.stdout
    assert "not run in 1 partition within 2 s: an operator has paused the partition. The" in paused.stderr
    streamworker.does("pause", "shop:price")
    asking = spawn("timers", "run-now", "shop:flush", "--wait", "1 minute")
    keys = GroupKeys("shop", "orders", "price")
    with redis.Redis.from_url(redis_url) as raw:
        requests = [keys.state(p) for p in range(4)]
        wait_for(lambda: all(any(b"run:flush" in f for f in raw.hkeys(k)) for k in requests), "asked")
        raw.delete(*requests)
    assert asking.wait() == ExitCode.FAILED
    assert "No call is known in 4 partitions, and the request is gone" in asking.log()
    assert "ran in" not in asking.log()
    assert worker.running


def test_a_timer_that_fails_is_shown_with_its_error(
    shop: Path, streamworker: Invoke, spawn: SpawnWorker
) -> None:
    """One of the app has no partition that `status` could show."""
    away = 'Path("greeted").write_text(str(at))'
    assert away in TIMED
    (shop / "shop.py").write_text(TIMED.replace(away, 'raise OSError("the mail server is away")'), "utf-8")
    streamworker("timers", "run-now", "shop:greet")
    spawn("run", "shop:app", "--name", "w1")

    def failing() -> list[str]:
        return [each["failing"] for each in streamworker.tells("timers", "list", "shop:app")]

    wait_for(lambda: any(failing()), "the error is shown")
    first, second = failing()
    assert "OSError: the mail server is away" in first and not second
    assert "timer greet fails" in streamworker("doctor", "shop:app").output


def test_what_is_no_timer_is_named_with_those_that_are_there(shop: Path, streamworker: Invoke) -> None:
    (shop / "shop.py").write_text(TIMED, "utf-8")
    wrong = streamworker("timers", "run-now", "shop:audit")
    assert wrong.exit_code == ExitCode.CONFIGURATION
    assert "Timers there: flush, greet" in " ".join(wrong.output.split())
    misspelt = streamworker("timers", "run-now", "shop:gret")
    assert misspelt.exit_code == ExitCode.CONFIGURATION
    assert "Timers in them: flush, greet." in " ".join(misspelt.output.split())


def test_an_app_without_timers_says_so(streamworker: Invoke) -> None:
    assert streamworker("timers", "shop:app").output == "The app has no timers.\n"
