"""Timers under kills: whatever dies, each planned time takes effect once."""

import json
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conftest import SpawnWorker
from tests.helpers import WorkerProcess, wait_for
from tests.raw import opened, records_of

STATE = "sw:{shop.streamworker-timers.0}:state:timers"
APP = """
import os
from datetime import datetime
import msgspec
from streamworker import App, Context

app = App(
    "shop", heartbeat_interval_ms=100, dead_after_ms=300, call_timeout_ms=2000, session_timeout_ms=6000,
    founding_pause_ms=1,
)


class Order(msgspec.Struct):
    customer: str


@app.processor(app.stream("orders", Order, key="customer", partitions=2))
async def audit(order: Order, ctx: Context) -> None:
    ctx.state["sum"] = ctx.state.get("sum", 0) + 1


class Tick(msgspec.Struct):
    at: float


ticks = app.stream("ticks", Tick, partitions=1, retention="1_000_000 records")


@app.timer(every=0.1, missed="all", into=ticks)
async def sweep(at: datetime, ctx: Context) -> Tick:
    ctx.state["ticks"] = ctx.state.get("ticks", 0) + 1
    ctx.state["first"] = ctx.state.get("first", at.timestamp())
    ctx.state["last"] = at.timestamp()
    return Tick(at.timestamp())


@audit.timer(every=0.1)
async def flush(ctx: Context) -> None:
    ctx.state["flushed"] = ctx.state.get("flushed", 0) + ctx.state.pop("sum", 0)
"""


@pytest.mark.parametrize(
    ("kills", "ticks"),
    [
        pytest.param(4, 100, marks=pytest.mark.full("kills workers")),
        pytest.param(300, 10_000, marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(3_000)
def test_each_planned_time_takes_effect_once_while_workers_are_killed(
    tmp_path: Path, spawn: SpawnWorker, redis_url: str, kills: int, ticks: int
) -> None:
    """With missed="all" none is left out either; and what partition timers flush equals what was counted.

    So many times are due at the start: the app seems to have been deployed long before.
    """
    (tmp_path / "shop.py").write_text(APP, "utf-8")
    rng = random.Random(17)
    started, workers = 0, dict[str, WorkerProcess]()

    def start() -> None:
        nonlocal started
        started += 1
        workers[f"w{started}"] = spawn("run", "shop:app", "--name", f"w{started}", cwd=tmp_path)

    with opened(redis_url) as server:

        def leader() -> str:
            ran = server.hget(STATE, "\0ran:sweep")
            return "" if ran is None else json.loads(ran)["by"].partition(".")[0]

        def stored(name: str) -> Any:
            return msgspec.msgpack.decode(server.hget(STATE, name))

        deployed_ms = round(time.time() - ticks / 10) * 1000
        server.hset(STATE, "\0tick:sweep", deployed_ms)
        start()
        start()
        sent = 0
        for _ in range(kills):
            for partition in (0, 1):
                for _ in range(rng.randrange(50)):
                    server.xadd(f"sw:{{shop.orders.{partition}}}:events", {"v": '{"customer":"ann"}'})
                    sent += 1
            killed = wait_for(lambda: next((w for w in workers if w == leader()), ""), "a live worker leads")
            workers.pop(killed).kill()
            start()
        wait_for(lambda: leader() in workers, "another has taken over")
        wait_for(lambda: stored("ticks") >= ticks, "what was due at the start has run")

        def total() -> int:
            states = [server.hgetall(f"sw:{{shop.orders.{p}}}:state:audit") for p in (0, 1)]
            return sum(msgspec.msgpack.decode(state[b"flushed"]) for state in states if b"flushed" in state)

        wait_for(lambda: total() == sent, "each order is counted and flushed once")
        for process in workers.values():
            wait_for(lambda process=process: "worker_started" in process.log(), "it heeds signals")  # type: ignore[misc]
            process.terminate()
            assert process.wait() == 0
        assert total() == sent
        print(f"{kills} kills of the leader, {stored('ticks')} ticks")
        assert round(stored("first") * 1000) == deployed_ms + 100, "the first that was due"
        assert stored("ticks") == round((stored("last") - stored("first")) / 0.1) + 1
        sent_on = [json.loads(each[b"v"])["at"] for each in records_of(server, "sw:{shop.ticks.0}:events")]
        planned = [stored("first") + number / 10 for number in range(stored("ticks"))]
        assert sent_on == pytest.approx(planned), "each time is in the stream once, in order"
