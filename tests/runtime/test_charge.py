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


class RoundTrip:
    """A round trip of appends that is begun and waits until it may go."""

    def __init__(self, appends: Sequence[Append]) -> None:
        self.partitions = [append.partition for append in appends]
        self.may_go = asyncio.Event()
        self.may_arrive = self.may_return = True
        self.replies: list[AppendReply] | None = None

    def lose(self, *, arrives: bool) -> None:
        """Let it have no answer, whether it reaches the server or not."""
        self.may_arrive, self.may_return = arrives, False
        self.may_go.set()

    async def done(self) -> dict[int, AppendCode]:
        """Let it go, and wait until its answers are taken in; returns them by partition."""
        self.may_go.set()
        await wait_for_async(lambda: self.replies is not None, "a round trip is done")
        await asyncio.sleep(0.01)
        codes = [reply.code for reply in self.replies or ()]
        return dict(zip(self.partitions, codes, strict=True))


class Road:
    """The way of appends to a real server, on which each round trip waits for its turn."""

    def __init__(self) -> None:
        self.waiting: list[RoundTrip] = []
        self._append_many = streams.append_many

    async def append_many(
        self, backend: Any, keys: Any, appends: Sequence[Append], durability: Any
    ) -> list[AppendReply]:
        """Append as ever, when it may."""
        trip = RoundTrip(appends)
        self.waiting.append(trip)
        await trip.may_go.wait()
        self.waiting.remove(trip)
        if trip.may_arrive:
            trip.replies = await self._append_many(backend, keys, appends, durability)
        if trip.replies is None or not trip.may_return:
            raise BackendUnavailable("It was lost on its way.")
        return trip.replies

    async def next(self, *partitions: int) -> RoundTrip:
        """Wait until a round trip to these partitions waits for its turn."""

        def found() -> list[RoundTrip]:
            waiting = (trip for trip in self.waiting if not trip.may_go.is_set())
            return [trip for trip in waiting if sorted(trip.partitions) == list(partitions)]

        (trip,) = await wait_for_async(found, f"appends to partitions {partitions} are begun")
        return trip


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
        first = await road.next(0)
        sent.append(lanes.queue((0, [PAYLOAD % n for n in range(2, 2 + MANY)], MANY, MANY), "wait"))
        sent.append(lanes.queue((1, [PAYLOAD % 1], 1, 1), "wait"))
        (await road.next(0, 1)).lose(arrives=False)
        first.lose(arrives=True)
        with redis.Redis.from_url(redis_url) as direct, capture_logs() as logs:
            for _ in range(999):
                direct.xadd(desk.stream_keys.events(1), {"v": PAYLOAD % 9})
            assert await (await road.next(0, 1)).done() == {0: AppendCode.OK, 1: AppendCode.FULL}
            assert await (await road.next(0)).done() == {0: AppendCode.DUP}
            repeat = await road.next(0)
            direct.xtrim(desk.stream_keys.events(1), maxlen=1, approximate=False)
            assert await (await road.next(1)).done() == {1: AppendCode.OK}

            sent.append(lanes.queue((0, [PAYLOAD % (2 + MANY)], 1, 1), "wait"))
            await asyncio.sleep(0.05)
            assert road.waiting == [repeat]
            assert await repeat.done() == {0: AppendCode.DUP}
            assert await (await road.next(0)).done() == {0: AppendCode.OK}
            await asyncio.gather(*(part.done for part in sent))
            assert await desk.numbers() == list(range(3 + MANY))
        assert list(lanes.losses) == []
        assert [log for log in logs if log["log_level"] == "error"] == []
