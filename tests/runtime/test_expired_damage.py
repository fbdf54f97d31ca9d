"""Functions at the ends of values, when they or other programs break something."""

import asyncio
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

import anyio
import msgspec
import pytest

from streamworker import App, Context
from streamworker.redisio.data.commit import commit_many
from streamworker.redisio.keys import GroupKeys
from streamworker.testing import local_worker
from tests.contract.support import Raw
from tests.helpers import until_shown, wait_for_async
from tests.raw import opened

pytestmark = pytest.mark.anyio

KEYS = GroupKeys("site", "seen", "follow")
VALUES, DUE = KEYS.table(0, "left"), KEYS.due(0, "left")


class Seen(msgspec.Struct):
    key: str
    n: int = 0


class Site:
    """A table of numbers that end after a moment, and the calls that were made."""

    def __init__(self, url: str, ttl: str = "0.2 seconds") -> None:
        self.app = App("site", redis_url=url)
        self.seen = self.app.stream("seen", Seen, key="key", partitions=1)
        self.left = left = self.app.table("left", int, ttl=ttl)
        self.calls: list[tuple[str, int]] = []
        self.does: Callable[[str], Any] = lambda _: None

        @self.app.processor(self.seen, tables=[left])
        async def follow(seen: Seen) -> None:
            left.set(seen.key, seen.n)

        @follow.expired(left)
        async def gone(key: str, n: int, ctx: Context) -> None:
            self.calls.append((key, n))
            self.does(key)

    async def until_called(self, count: int = 1) -> None:
        await wait_for_async(lambda: len(self.calls) >= count, "the calls are made")

    async def until_gone(self) -> None:
        async def none_is_left() -> bool:
            return await self.left.count() == 0

        await wait_for_async(none_is_left, "no value is left")


KINDS: list[tuple[Any, Any]] = [
    (bytes, b"\x00\xff a"),
    (int, -7),
    (UUID, UUID(int=5)),
    (dt.date, dt.date(2026, 2, 28)),
    (dt.datetime, dt.datetime(2026, 2, 28, 12, 30, 0, 5, tzinfo=dt.UTC)),
    (Decimal, Decimal("1.50")),
    (str, "a b\x00ö"),
]


@pytest.mark.parametrize(("kind", "key"), KINDS, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_function_gets_each_kind_of_key_as_it_was_set(kind: Any, key: Any) -> None:
    """Also as a part of a key of several."""
    record = msgspec.defstruct("Record", [("key", kind)])
    app, found = App("site"), list[Any]()
    seen = app.stream("seen", record, key="key", partitions=1)
    one = app.table("one", str, key=kind, ttl="1 second")
    two = app.table("two", str, key=("key", "n"), ttl="1 second")

    async def follow(each: Any) -> None:
        one.set(each.key, " 1")
        two.set((each.key, 3), "")

    async def gone(its: Any, value: str) -> None:
        found.append((its, value))

    async def gone_many(ended: list[tuple[tuple[Any, int], str]]) -> None:
        found.extend(ended)

    follows = app.processor(seen, tables=[one, two])(follow)
    follows.expired(one)(gone)
    follows.expired(two)(gone_many)
    async with local_worker(app, clock="virtual") as worker:
        await seen.send(record(key))
        await worker.advance("5 seconds")
        assert (await one.count(), await two.count()) == (0, 0)
    assert sorted(found, key=str) == sorted([(key, " 1"), ((key, 3), "")], key=str)
    assert {type(its) for its, _ in found} == {kind, tuple}


@pytest.fixture
def raw(redis_url: str) -> Any:
    with opened(redis_url) as client:
        yield client


@pytest.mark.parametrize("score", ["-inf", "1.5", "1e300", "inf", "5"])
async def test_what_others_add_to_the_index_is_called_for_if_it_has_a_value(
    redis_url: str, raw: Raw, score: str
) -> None:
    """Whatever they say is its time; without a value it is removed when its time has come."""
    site = Site(redis_url, "1 hour")
    async with local_worker(site.app, url=redis_url) as worker:
        await site.seen.send_many([Seen("ann"), Seen("bob")])
        await worker.until_drained()
        raw.zadd(DUE, {"nobody": score, "ann": score})
    async with local_worker(site.app, url=redis_url) as worker:
        if float(score) < 1e300:
            await site.until_called()

            async def is_removed() -> bool:
                return bool(raw.zrange(DUE, 0, -1) == [b"bob"])

            await wait_for_async(is_removed, "what has ended is removed")
        await site.seen.send(Seen("eve"))
        await worker.until_drained()
        assert site.calls == ([("ann", 0)] if float(score) < 1e300 else [])
        assert await site.left.get("bob") == 0


async def test_a_value_that_others_have_removed_is_no_call(redis_url: str, raw: Raw) -> None:
    site = Site(redis_url, "0.5 seconds")
    async with local_worker(site.app, url=redis_url) as worker:
        await site.seen.send_many([Seen("ann"), Seen("bob")])
        await worker.until_drained()
        raw.hdel(VALUES, "ann")
        await site.until_gone()
        await worker.until_drained()
    assert raw.exists(DUE) == 0
    assert ("bob", 0) in site.calls


async def test_values_whose_index_is_gone_end_when_they_are_set_again(redis_url: str, raw: Raw) -> None:
    site = Site(redis_url, "1 second")
    async with local_worker(site.app, url=redis_url) as worker:
        await site.seen.send_many([Seen("ann"), Seen("bob")])
        await worker.until_drained()
        raw.delete(DUE)
        await site.seen.send(Seen("ann", 2))
        await site.until_called()
        assert await site.left.get("bob") == 0
    assert site.calls == [("ann", 2)]


async def test_a_value_that_is_none_of_the_table_holds_up_those_behind_it_and_is_named(
    redis_url: str, raw: Raw
) -> None:
    """Until it is put right; those before it have their calls."""
    site = Site(redis_url, "1 second")
    async with local_worker(site.app, url=redis_url) as worker:
        for key in ("ann", "bob", "eve"):
            await site.seen.send(Seen(key))
            await worker.until_drained()
        raw.hset(VALUES, "bob", b" \xc1")
    async with local_worker(site.app, url=redis_url) as worker:
        shown = await until_shown(worker, lambda view: "function gone fails" in view.reason)
        assert "Table 'left' holds no int for the key 'bob'" in shown.reason
        assert site.calls == [("ann", 0)]
        await site.seen.send(Seen("bob", 5))
        await site.until_called(3)
    assert site.calls == [("ann", 0), ("eve", 0), ("bob", 5)]


@pytest.mark.parametrize("index", [DUE, KEYS.expiry(0, "left")])
async def test_an_index_of_another_type_is_named_and_records_wait(
    redis_url: str, raw: Raw, index: str
) -> None:
    """When it is away, all goes on; the index of tables that call nothing is looked at, too."""
    site = Site(redis_url, "1 second")
    raw.set(index, "x")
    async with local_worker(site.app, url=redis_url) as worker:
        await site.seen.send(Seen("ann"))
        shown = await until_shown(worker, lambda view: index in view.reason)
        assert site.calls == []
        assert shown.lag == 1
        raw.delete(index)
        await site.until_called()


def leaves() -> NoReturn:
    raise SystemExit(3)


def interrupts() -> NoReturn:
    raise KeyboardInterrupt


def cancels() -> NoReturn:
    raise asyncio.CancelledError


@pytest.mark.parametrize("does", [leaves, interrupts, cancels])
async def test_whatever_a_function_raises_fails_its_call_alone(
    redis_url: str, does: Callable[[], Any]
) -> None:
    """Records are handled meanwhile, and the call is made again."""
    site = Site(redis_url)
    site.does = lambda _: does() if len(site.calls) < 3 else None
    async with local_worker(site.app, url=redis_url) as worker:
        await site.seen.send(Seen("ann"))
        await until_shown(worker, lambda view: "function gone fails" in view.reason)
        await site.seen.send(Seen("bob"))
        await worker.until_drained()
        await site.until_gone()
    assert site.calls[:3] == [("ann", 0)] * 3


@pytest.mark.parametrize("when", ["in the call", "before its commit", "after its commit"])
async def test_a_worker_that_dies_leaves_the_call_to_the_next_owner(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It is made again unless its commit was done, and its results are there once."""
    app = App("site", redis_url=redis_url)
    seen = app.stream("seen", Seen, key="key", partitions=1)
    ended = app.stream("ended", Seen, key="key", partitions=1)
    left = app.table("left", int, ttl="0.3 seconds")
    calls, killed = list[str](), anyio.Event()

    @app.processor(seen, tables=[left])
    async def follow(seen: Seen) -> None:
        left.set(seen.key, seen.n)

    @follow.expired(left, into=ended)
    async def gone(key: str, n: int, ctx: Context) -> Seen:
        calls.append(key)
        ctx.state["ended"] = ctx.state.get("ended", 0) + 1
        if when == "in the call" and len(calls) == 2:
            killed.set()
            await anyio.sleep_forever()
        return Seen(key, ctx.state["ended"])

    async def committing(backend: Any, keys: Any, requests: Any, *rest: Any) -> Any:
        is_tick = any(each.timer for each in requests) and not killed.is_set()
        if is_tick and when == "before its commit":
            killed.set()
            await anyio.sleep_forever()
        replies = await commit_many(backend, keys, requests, *rest)
        if is_tick and when == "after its commit":
            killed.set()
            await anyio.sleep_forever()
        return replies

    monkeypatch.setattr("streamworker.runtime.run.committer.commit_many", committing)
    async with local_worker(app, url=redis_url) as worker:
        await seen.send_many([Seen("ann"), Seen("bob")])
        await killed.wait()
        await worker.kill()
    async with local_worker(app, url=redis_url) as worker:

        async def both() -> bool:
            return len(await worker.sent(ended)) >= 2

        await wait_for_async(both, "both are told")
        told = [(each.key, each.n) for each in await worker.sent(ended)]
        assert await left.count() == 0
    assert told == [("ann", 1), ("bob", 2)]
    assert len(calls) == (2 if when == "after its commit" else 4)
