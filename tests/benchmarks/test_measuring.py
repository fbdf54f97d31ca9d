"""How the figures of programs are made, and what a bench leaves behind."""

import asyncio
from pathlib import Path

import msgspec
import pytest
import redis

from benchmarks.measuring import programs as programs_module
from benchmarks.measuring import rows
from benchmarks.measuring.ground import BUSY_PER_S, open_ground
from benchmarks.measuring.programs import Bench, BenchFailed, Program
from benchmarks.measuring.scenes import BATCH
from benchmarks.measuring.task import Begun, RowRates, Task
from streamworker.errors import ConfigurationError
from streamworker.redisio.keys import GroupKeys

RECORDS = 3000


@pytest.mark.anyio
async def test_a_bench_leaves_nothing_behind_and_touches_nothing_else(redis_url: str) -> None:
    """Also when it is cancelled, as Ctrl-C does it."""
    with redis.Redis.from_url(redis_url) as client:
        client.set("sw:{bench-abcd0:mine}", "1")
        client.set("other", "1")

        async def bench() -> None:
            async with open_ground(redis_url, "bench-abcd") as ground:
                await ground.backend.execute("XADD", *ground.keys("events", 1), "*", "v", "1")
                assert client.dbsize() == 3
                await asyncio.sleep(60)

        task = asyncio.create_task(bench())
        while client.dbsize() < 3:
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(client.keys()) == {b"sw:{bench-abcd0:mine}", b"other"}
        client.delete("sw:{bench-abcd0:mine}")


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["shop", "bench-*", "bench-", "bench-a:b"])
async def test_a_bench_uses_no_name_that_may_be_an_apps(redis_url: str, name: str) -> None:
    """It removes what it finds under its name in the end."""
    with pytest.raises(ConfigurationError, match="removes them when it ends"):
        async with open_ground(redis_url, name):
            raise AssertionError


@pytest.mark.anyio
async def test_a_bench_refuses_keys_that_are_there_already(redis_url: str) -> None:
    """They are not its own; and they are still there afterwards."""
    with redis.Redis.from_url(redis_url) as client:
        client.set("sw:{bench-abcd.events.0}:events", "somebody's")
        with pytest.raises(ConfigurationError, match="exist already"):
            async with open_ground(redis_url, "bench-abcd"):
                raise AssertionError
        assert client.dbsize() == 1


@pytest.mark.anyio
async def test_a_server_that_others_keep_busy_is_known(redis_url: str) -> None:
    """A figure made there would be partly theirs."""
    warned: list[str] = []
    async with open_ground(redis_url, warn=warned.append):
        assert warned == []
    with redis.Redis.from_url(redis_url) as client:
        opening = asyncio.create_task(_open_and_close(redis_url, warned))
        while not opening.done():
            with client.pipeline(transaction=False) as pipe:
                for _ in range(BUSY_PER_S):
                    pipe.ping()
                await asyncio.to_thread(pipe.execute)
    assert "commands/s to this server" in warned[0]


async def _open_and_close(url: str, warned: list[str]) -> None:
    async with open_ground(url, warn=warned.append):
        pass


@pytest.mark.anyio
async def test_records_that_are_all_in_the_first_call_give_no_figure(redis_url: str) -> None:
    """Its records are not counted, so nothing would be left to be timed."""
    async with open_ground(redis_url) as ground:
        keys = await ground.fill_packed(BATCH.entries, 1000)
        with pytest.raises(BenchFailed, match="all records in its first call"):
            await Bench(ground, records=1000).handled(BATCH, keys)


@pytest.mark.anyio
async def test_a_process_that_fails_ends_the_bench_with_its_log(redis_url: str) -> None:
    """A figure is never made up."""
    broken = Program("broken", ("-c", "raise SystemExit('no such thing')"))
    async with open_ground(redis_url) as ground:
        keys = await ground.fill_packed("events", 10)
        with pytest.raises(BenchFailed, match="broken has not begun") as raised:
            await Bench(ground, records=10).handled(broken, keys)
    assert "no such thing" in (raised.value.remedy or "")


SLEEPS = Program("sleeper", ("-c", "import time; time.sleep(60)"))


@pytest.mark.anyio
async def test_a_process_is_waited_for_as_long_as_its_streams_move(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine makes it slow, which is no failure; one that stands still is given up."""
    monkeypatch.setattr(programs_module, "STALL_S", 2)
    async with open_ground(redis_url) as ground:
        keys = await ground.fill_packed("events", 10)
        async with Bench(ground).started(SLEEPS, keys) as process:
            waiting = asyncio.create_task(process.told(Begun))
            for _ in range(30):
                await asyncio.sleep(0.1)
                await ground.backend.execute("XADD", keys[0], "*", "v", "1")
            assert not waiting.done()
            with pytest.raises(BenchFailed, match="sleeper has not begun"):
                await waiting


@pytest.mark.anyio
async def test_a_reader_is_not_waited_for_when_its_sender_has_failed(redis_url: str) -> None:
    """What was not sent would never arrive; the log that is shown is the sender's."""
    broken = Program("sender", ("-c", "raise SystemExit('no such thing')"))
    async with open_ground(redis_url) as ground:
        keys = await ground.fill_packed("events", 10)
        bench = Bench(ground)
        async with bench.started(SLEEPS, keys) as reader, bench.started(broken, keys) as sender:
            with pytest.raises(BenchFailed, match="sender has not sent all") as raised:
                await reader.told(Begun, beside=sender)
    assert "no such thing" in (raised.value.remedy or "")


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["columns", "records"])
async def test_rows_are_measured_as_they_are_sent_handled_and_both(
    redis_url: str, tmp_path: Path, mode: str
) -> None:
    """Each way to the end: what was sent is committed when the time is taken."""
    path = tmp_path / "rates"
    async with open_ground(redis_url) as ground:
        task = Task(
            app=ground.name, mode=mode, group="g", keys=ground.keys("rows", 2), stream="rows", partitions=2,
            records=RECORDS, begun_path=str(path), url=redis_url,
        )  # fmt: skip
        await rows.measure(task)
        rates = msgspec.json.decode(path.read_bytes(), type=RowRates)
        assert min(rates.send_per_s, rates.handle_per_s, rates.both_per_s) > 0
        for stream in ("rows-apart", "rows-together"):
            acked = [GroupKeys(ground.name, stream, "g").acked(partition) for partition in range(2)]
            last = await ground.backend.pipeline([("XREVRANGE", key, "+", "-", "COUNT", 1) for key in acked])
            assert sum(int(found[0][0].partition(b"-")[0]) for found in last if found) == RECORDS + 1
