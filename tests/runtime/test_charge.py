"""An append is in the charge of one task at a time: no other one ends it, or sends what comes behind it."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from streamworker.core.data.channel import AppendCode, AppendReply
from streamworker.errors import BackendUnavailable
from streamworker.redisio.data import streams
from streamworker.redisio.data.streams import Append
from streamworker.runtime.send.lane import AHEAD_ENTRIES
from streamworker.runtime.send.lanes import Declaration, Lanes
from tests.helpers import wait_for_async
from tests.runtime.workbench import bench

pytestmark = pytest.mark.anyio

PAYLOAD = b'{"number":%d,"customer":"ann"}'
MANY = AHEAD_ENTRIES + 50


class Road:
    """The way of appends to a real server, on which each round trip waits for what becomes of it."""

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, ...], asyncio.Future[str]] = {}
        self._codes: dict[int, AppendCode] = {}
        self._append_many = streams.append_many

    async def append_many(
        self, backend: Any, keys: Any, appends: Sequence[Append], durability: Any
    ) -> list[AppendReply]:
        """Append as ever, unless the appends or their answers are lost."""
        partitions = tuple(sorted(append.partition for append in appends))
        fate = self.waiting[partitions] = asyncio.get_running_loop().create_future()
        replies: list[AppendReply] = []
        if await fate != "lost":
            replies = await self._append_many(backend, keys, appends, durability)
            codes = (reply.code for reply in replies)
            self._codes = dict(zip((append.partition for append in appends), codes, strict=True))
        if fate.result() != "answered":
            raise BackendUnavailable("It was lost on its way.")
        return replies

    async def go(self, *partitions: int, fate: str = "answered") -> dict[int, AppendCode]:
        """Let the next round trip to these partitions go; return its answers, which are taken in then."""
        await wait_for_async(lambda: partitions in self.waiting, f"appends to {partitions} are begun")
        self._codes = {}
        self.waiting.pop(partitions).set_result(fate)
        await wait_for_async(lambda: self._codes or fate == "lost", "a round trip is done")
        await asyncio.sleep(0.01)
        return self._codes


async def test_a_flush_that_repeats_another_partition_does_not_end_what_is_repeated_by_itself(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second append of a partition was answered before the first, beside one that found no room.

    It is repeated when the first has its answer. The flush that it came with goes on until there is room
    for the other, and ends then; it must not end the repeat, or the next send goes beside that.
    """
    async with bench(redis_url, run=False, partitions=2, stream={"records_max": 1_000}) as desk:
        await desk.acquire(1, "w1")
        lanes = Lanes(Declaration(desk.backend, desk.stream, desk.settings), random.Random(1))
        await asyncio.gather(
            *(lanes.queue((partition, [PAYLOAD % 0], 1, 1), "wait").done for partition in (0, 1))
        )
        road = Road()
        monkeypatch.setattr(streams, "append_many", road.append_many)

        sent = [lanes.queue((0, [PAYLOAD % 1], 1, 1), "wait")]
        await wait_for_async(lambda: (0,) in road.waiting, "the first append is begun")
        sent.append(lanes.queue((0, [PAYLOAD % n for n in range(2, 2 + MANY)], MANY, MANY), "wait"))
        sent.append(lanes.queue((1, [PAYLOAD % 1], 1, 1), "wait"))
        await road.go(0, 1, fate="lost")
        await road.go(0, fate="unanswered")
        with redis.Redis.from_url(redis_url) as direct, capture_logs() as logs:
            for _ in range(999):
                direct.xadd(desk.stream_keys.events(1), {"v": PAYLOAD % 9})
            assert await road.go(0, 1) == {0: AppendCode.OK, 1: AppendCode.FULL}
            assert await road.go(0) == {0: AppendCode.DUP}
            await wait_for_async(lambda: (0,) in road.waiting, "the second append is repeated")
            repeat = road.waiting[0,]
            direct.xtrim(desk.stream_keys.events(1), maxlen=1, approximate=False)
            assert await road.go(1) == {1: AppendCode.OK}

            sent.append(lanes.queue((0, [PAYLOAD % (2 + MANY)], 1, 1), "wait"))
            await asyncio.sleep(0.05)
            assert road.waiting == {(0,): repeat}
            assert await road.go(0) == {0: AppendCode.DUP}
            assert await road.go(0) == {0: AppendCode.OK}
            await asyncio.gather(*(part.done for part in sent))
            assert await desk.numbers() == list(range(3 + MANY))
        assert list(lanes.losses) == []
        assert [log for log in logs if log["log_level"] == "error"] == []
