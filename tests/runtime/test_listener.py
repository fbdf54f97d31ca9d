"""Control streams that another program wrote over: named once, gone on without, and used again."""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
import redis
from structlog.testing import capture_logs

from streamworker.core.control import PartitionsReleased
from streamworker.core.events import ControlReceived
from streamworker.redisio.group import control
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime import telling
from streamworker.runtime.listener import Listener
from tests.helpers import wait_for_async
from tests.raw import opened

pytestmark = pytest.mark.anyio

OURS, THEIRS = GroupKeys("shop", "orders", "price"), GroupKeys("shop", "orders", "audit")


@pytest.fixture
def raw(redis_url: str) -> Iterator["redis.Redis"]:
    with opened(redis_url) as client:
        yield client


class Heard:
    def __init__(self) -> None:
        self.generations: list[int] = []

    def __call__(self, event: ControlReceived) -> None:
        self.generations += [each.generation for each in event.messages]  # type: ignore[attr-defined]

    def has(self, generation: int) -> bool:
        return generation in self.generations


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[tuple[Backend, Heard, Heard]]:
    """Listen for two groups."""
    ours, theirs = Heard(), Heard()
    async with Backend.open(url, name="listener") as backend:
        listener = Listener(backend, random.Random(1))
        await listener.add(OURS, ours)
        await listener.add(THEIRS, theirs)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.run)
            yield backend, ours, theirs
            tasks.cancel_scope.cancel()


async def say(backend: Backend, keys: GroupKeys, generation: int) -> None:
    await control.post(backend, keys, [PartitionsReleased((0,), "a.1", generation).fields()])


async def test_a_stream_that_is_written_over_is_named_once_and_used_again(
    redis_url: str, raw: "redis.Redis"
) -> None:
    """The other group's is heard all the time; nothing that came before is heard again."""
    with capture_logs() as logs:
        async with listening(redis_url) as (backend, ours, theirs):
            await say(backend, OURS, 1)
            await wait_for_async(lambda: ours.generations == [1], "the first message")
            raw.rename(OURS.control, "spare")
            raw.set(OURS.control, "mine")
            for generation in range(1, 5):
                await say(backend, THEIRS, generation)
                await wait_for_async(partial(theirs.has, generation), "the others' message")
                await anyio.sleep(0.3)
            raw.delete(OURS.control)
            raw.rename("spare", OURS.control)
            await say(backend, OURS, 2)
            await wait_for_async(lambda: ours.generations == [1, 2], "the message after that")
    said = [(log["event"], log["key"]) for log in logs if log["event"].startswith("control_stream")]
    assert said == [("control_stream_unreadable", OURS.control), ("control_stream_readable", OURS.control)]


async def test_a_lost_connection_is_told_and_its_end_too(
    redis_url: str, raw: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next message is heard, and so it is said that the stream is read again."""
    monkeypatch.setattr(telling, "_told_s", {})  # Other tests may have told it less than a minute ago.
    with capture_logs() as logs:
        async with listening(redis_url) as (backend, ours, _):
            await say(backend, OURS, 1)
            await wait_for_async(lambda: ours.generations == [1], "the first message")
            (reading,) = [each for each in raw.client_list() if each["cmd"] == "xread"]
            raw.client_kill_filter(_id=reading["id"])

            async def is_told() -> bool:
                await say(backend, OURS, 2)
                return "control_stream_readable" in [log["event"] for log in logs]

            await wait_for_async(is_told, "it is read again")
            assert ours.has(2)
    said = [log["event"] for log in logs if log["event"].startswith("control_stream")]
    assert said == ["control_stream_unreadable", "control_stream_readable"]


async def test_a_worker_begins_where_a_stream_is_something_else(redis_url: str, raw: "redis.Redis") -> None:
    """It listens from when there is one: old messages would let in who is long gone."""
    raw.set(OURS.control, "mine")
    raw.set(THEIRS.control, "mine")
    async with listening(redis_url) as (backend, ours, theirs):
        raw.delete(THEIRS.control)

        async def is_heard() -> bool:
            await say(backend, THEIRS, 7)
            return bool(theirs.generations)

        await wait_for_async(is_heard, "their first message")
        with raw.pipeline(transaction=True) as swap:
            swap.delete(OURS.control)
            swap.xadd(OURS.control, PartitionsReleased((0,), "a.1", 3).fields())  # type: ignore[arg-type]
            swap.execute()
        generation = 100

        async def is_heard_again() -> bool:
            nonlocal generation
            generation += 1
            await say(backend, OURS, generation)
            return bool(ours.generations)

        await wait_for_async(is_heard_again, "our first message")
        assert 3 not in ours.generations
