"""Functions at the ends of a table's values: when they are called, for what, and what their commit holds."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from streamworker import App, Context, Skip, Stream, Table
from streamworker.redisio.data.commit import commit_many
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.run import committer
from streamworker.runtime.run.timed import expiring
from streamworker.testing import LocalWorker, fake_context, local_worker
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio

KEYS = GroupKeys("visits", "seen", "follow")


class Seen(msgspec.Struct):
    user: str
    page: int = 0
    takes_s: float = 0


class Visit(msgspec.Struct):
    user: str
    pages: list[int] = []


class Site:
    """Visits that end after half a minute of silence, and what was done at their ends."""

    def __init__(self, *, ttl: str | None = "30 seconds", is_called: bool = True, **settings: Any) -> None:
        self.app = App("visits", **settings)
        self.seen: Stream[Seen] = self.app.stream("seen", Seen, key="user", partitions=1)
        self.ended: Stream[Visit] = self.app.stream("ended", Visit, key="user", partitions=1)
        self.visits: Table[str, Visit] = self.app.table("visits", Visit, ttl=ttl)
        self.calls: list[tuple[str, list[int]]] = []
        self.until: Callable[[Seen], datetime | None] = lambda _: None
        self.fails: Callable[[str], None] = lambda _: None
        """Called with each user whose visit has ended, before its row is returned."""

        async def follow(seen: Seen, ctx: Context) -> None:
            await anyio.sleep(seen.takes_s)
            if seen.page < 0:
                self.visits.delete(seen.user)
                return
            visit = await self.visits.get(seen.user) or Visit(seen.user)
            visit.pages.append(seen.page)
            self.visits.set(seen.user, visit, until=self.until(seen))

        async def gone(user: str, visit: Visit, ctx: Context) -> Visit:
            self.calls.append((user, visit.pages))
            self.fails(user)
            ctx.state["ended"] = ctx.state.get("ended", 0) + 1
            return visit

        self.follow = self.app.processor(self.seen, tables=[self.visits])(follow)
        if is_called:
            self.gone = self.follow.expired(self.visits, into=self.ended)(gone)

    async def see(self, *users: str, page: int = 1) -> None:
        await self.seen.send_many([Seen(user, page) for user in users])


async def rows(site: Site, worker: LocalWorker) -> list[tuple[str, list[int]]]:
    return [(each.user, each.pages) for each in await worker.sent(site.ended)]


async def test_a_value_is_readable_until_the_call_at_its_end_is_committed() -> None:
    """Then it is gone, and what the function returned is in its stream; a set moves the end."""
    site = Site()
    async with local_worker(site.app, clock="virtual") as worker:
        await site.see("ann")
        await worker.advance("20 seconds")
        await site.see("ann", page=2)
        await worker.advance("29 seconds")
        assert (await site.visits.get("ann"), await rows(site, worker)) == (Visit("ann", [1, 2]), [])
        await worker.advance("2 seconds")
        assert (await site.visits.get("ann"), await rows(site, worker)) == (None, [("ann", [1, 2])])
        await site.see("ann", page=3)
        await worker.advance("1 minute")
        assert await rows(site, worker) == [("ann", [1, 2]), ("ann", [3])]


async def test_a_value_that_was_deleted_has_no_end() -> None:
    site = Site()
    async with local_worker(site.app, clock="virtual") as worker:
        await site.see("ann", "bob")
        await worker.advance("10 seconds")
        await site.see("ann", page=-1)
        await worker.advance("1 minute")
        assert await rows(site, worker) == [("bob", [1])]


async def test_values_end_in_the_order_of_their_times() -> None:
    """With ``until`` each has a time of its own; one that is past has come."""
    site = Site(ttl=None)
    began = [datetime.now(UTC)]
    ends_s = {"ann": 90, "bob": 30, "eve": 60, "joe": -3600}
    site.until = lambda seen: began[0] + timedelta(seconds=ends_s[seen.user])
    async with local_worker(site.app, clock="virtual") as worker:
        await worker.advance("1 second")
        await site.see("joe", *sorted(set(ends_s) - {"joe"}))
        await worker.advance("10 seconds")
        assert site.calls == [("joe", [1])]
        await worker.advance("2 minutes")
        assert [user for user, _ in site.calls] == ["joe", "bob", "eve", "ann"]


async def test_a_call_that_fails_has_done_nothing_and_is_made_again() -> None:
    """After pauses that grow; status says so, and later ends wait."""
    site = Site()
    at: list[float] = []

    def fails(user: str) -> None:
        at.append(asyncio.get_running_loop().time())
        if len(at) < 6:
            raise ValueError("no route")

    site.fails = fails
    async with local_worker(site.app, clock="virtual") as worker:
        await site.see("ann", "bob")
        await worker.until(
            lambda now: any(
                "function gone fails, attempt 3: ValueError: no route" in part.reason
                for part in now.processors["follow"].partitions
            )
        )
        assert await site.visits.get("ann") == Visit("ann", [1])
        await worker.advance("2 minutes")
        assert await rows(site, worker) == [("ann", [1]), ("bob", [1])]
        assert (await worker.snapshot()).processors["follow"].partitions[0].reason == ""
    assert [user for user, _ in site.calls] == ["ann"] * 6 + ["bob"]
    pauses = [after - before for before, after in pairwise(at[:6])]
    assert pauses[4] > 4 * pauses[0] > 0


async def test_those_before_one_that_fails_are_done() -> None:
    site = Site()

    def fails(user: str) -> None:
        if user == "bob":
            raise ValueError("no route")

    site.fails = fails
    async with local_worker(site.app, clock="virtual") as worker:
        await site.see("ann", "bob", "eve")
        await worker.advance("50 seconds")
        assert await rows(site, worker) == [("ann", [1])]
        assert await site.visits.get("eve") == Visit("eve", [1])
        site.fails = lambda _: None
        await worker.advance("2 minutes")
        assert await rows(site, worker) == [("ann", [1]), ("bob", [1]), ("eve", [1])]
    assert [user for user, _ in site.calls].count("ann") == 1


async def test_a_failing_call_pauses_though_more_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one call takes, in which it would be made again at once."""
    monkeypatch.setattr(expiring, "KEYS_MAX", 2)
    site = Site()

    def fails(user: str) -> None:
        raise ValueError("no route")

    site.fails = fails
    async with local_worker(site.app, clock="virtual") as worker:
        await site.see(*"abcdef")
        await worker.advance("50 seconds")
        assert 3 < len(site.calls) < 15
        site.fails = lambda _: None
        await worker.advance("1 minute")
        assert [user for user, _ in await rows(site, worker)] == [*"abcdef"]


async def test_skip_removes_the_value_and_says_why() -> None:
    """The others of the call are not concerned."""
    site = Site()

    def skips(user: str) -> None:
        if user == "bob":
            raise Skip("a robot")

    site.fails = skips
    async with local_worker(site.app, clock="virtual") as worker:
        with capture_logs() as logs:
            await site.see("ann", "bob", "eve")
            await worker.advance("1 minute")
        assert await rows(site, worker) == [("ann", [1]), ("eve", [1])]
        assert await site.visits.count() == 0
    [told] = [line for line in logs if line["event"] == "expiry_skipped"]
    assert (told["key"], told["reason"]) == ("bob", "a robot")


async def test_a_value_that_the_call_sets_stays_until_its_new_end() -> None:
    """By the table's ``ttl`` or a time of its own, and though it is the same."""
    app = App("visits")
    seen = app.stream("seen", Seen, key="user", partitions=1)
    left = app.table("left", int, ttl="30 seconds")
    calls: list[tuple[str, int]] = []

    @app.processor(seen, tables=[left])
    async def follow(seen: Seen) -> None:
        left.set(seen.user, seen.page)

    @follow.expired(left)
    async def remind(user: str, count: int, ctx: Context) -> None:
        calls.append((user, count))
        if user == "ann" and count:
            left.set("ann", count - 1)
        if user == "bob" and len(calls) < 4:
            # One call changes what the next one would get: `eve` stays, with another end.
            left.set("eve", 7, until=datetime.now(UTC) + timedelta(hours=1))

    async with local_worker(app, clock="virtual") as worker:
        await seen.send_many([Seen("ann", 2), Seen("bob", 7), Seen("eve", 7)])
        await worker.advance("40 seconds")
        assert calls == [("ann", 2), ("bob", 7)]
        assert {key: value async for key, value in left.scan()} == {"ann": 1, "eve": 7}
        await worker.advance("1 minute")
        assert calls == [("ann", 2), ("bob", 7), ("ann", 1), ("ann", 0)]


async def test_a_list_has_all_that_has_ended_and_one_call_is_one_commit() -> None:
    site = Site(is_called=False)
    calls: list[list[str]] = []

    @site.follow.expired(site.visits, into=site.ended)
    async def gone(ended: list[tuple[str, Visit]]) -> list[Visit]:
        calls.append([user for user, _ in ended])
        if len(calls) == 1:
            site.visits.set("zoe", Visit("zoe"))
            raise ValueError("no route")
        site.visits.set("bob", Visit("bob", [9]))
        return [visit for user, visit in ended if user != "bob"]

    async with local_worker(site.app, clock="virtual") as worker:
        await site.see("ann", "bob", "eve")
        await worker.advance("45 seconds")
        assert calls == [["ann", "bob", "eve"]] * 2
        assert await rows(site, worker) == [("ann", [1]), ("eve", [1])]
        assert {key: value async for key, value in site.visits.scan()} == {"bob": Visit("bob", [9])}


async def test_the_state_counts_each_call_of_one_commit() -> None:
    """Each sees what those before it have stored."""
    site = Site()
    counted: list[int] = []

    @site.follow.timer(every="1 minute")
    async def tell(at: datetime, ctx: Context) -> None:
        counted.append(ctx.state.get("ended", 0))

    async with local_worker(site.app, clock="virtual") as worker:
        await site.see(*"abcdefgh")
        await worker.advance("2 minutes")
    assert counted[-1] == 8


async def test_what_came_before_the_end_comes_first() -> None:
    """A worker that lags ends no visit that a record in its backlog continues."""
    site = Site()
    async with local_worker(site.app, clock="virtual") as worker:
        await site.see("ann")
        await worker.advance("20 seconds")
        await site.seen.send(Seen("slow", takes_s=25))
        await site.see("ann", page=2)
        await worker.advance("20 seconds")
        assert site.calls == []
        assert await site.visits.get("ann") == Visit("ann", [1])
        await worker.advance("15 seconds")
        assert site.calls == []
        assert await site.visits.get("ann") == Visit("ann", [1, 2])
        await worker.advance("1 minute")
        assert ("ann", [1, 2]) in site.calls
        assert ("ann", [1]) not in site.calls


async def test_a_commit_under_way_that_moves_an_end_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record came after the end, so the call need not wait for it, and is handled before the call."""
    site, commit = Site(), commit_many

    async def slow(*args: Any) -> Any:
        await anyio.sleep(5)
        return await commit(*args)

    monkeypatch.setattr(committer, "commit_many", slow)
    async with local_worker(site.app, clock="virtual") as worker:
        await site.see("ann")  # It ends 35 seconds from now.
        await worker.advance("33.5 seconds")
        await site.seen.send(Seen("bob", takes_s=3))
        await worker.advance("2 seconds")
        await site.see("ann", page=2)
        await worker.advance("30 seconds")
        assert (site.calls, await site.visits.get("ann")) == ([], Visit("ann", [1, 2]))
        await worker.advance("1 minute")
        assert ("ann", [1, 2]) in site.calls


async def test_records_have_their_turns_between_the_calls_of_a_long_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So many keys a call, and again at once."""
    monkeypatch.setattr(expiring, "KEYS_MAX", 10)
    site, order = Site(is_called=False), list[object]()

    @site.follow.expired(site.visits)
    async def gone(ended: list[tuple[str, Visit]]) -> None:
        await anyio.sleep(0.1)
        order.append(len(ended))

    @site.app.processor(site.seen, name="watch")
    async def watch(seen: Seen) -> None:
        """Another group does not wait."""

    async with local_worker(site.app, clock="virtual") as worker:
        await site.see(*(f"user-{n}" for n in range(95)))
        await worker.advance("29.9 seconds")
        await worker.until(lambda _: len(order) == 2)
        await site.see("late")
        await worker.until(lambda now: now.processors["follow"].committed == 96)
        assert 2 <= len(order) <= 4
        at_s = asyncio.get_running_loop().time()
        await worker.until(lambda _: len(order) == 10)
        assert asyncio.get_running_loop().time() - at_s < 3
    assert order == [10] * 9 + [5]


async def test_a_table_without_a_function_removes_values_at_their_own_times() -> None:
    """``until`` takes precedence over ``ttl``; a time that is past has come, however long ago it was."""
    site = Site(is_called=False)
    began = datetime.now(UTC)
    times = {"ann": None, "bob": began + timedelta(minutes=2), "eve": began - timedelta(days=30_000)}
    site.until = lambda seen: times[seen.user]
    async with local_worker(site.app, clock="virtual") as worker:
        for _ in range(2):
            await site.see(*times)
            await worker.until_drained()
        assert {user: len(visit.pages) async for user, visit in site.visits.scan()} == {"ann": 2, "bob": 2}
        assert await site.visits.get("eve") is None
        await worker.advance("1 minute")
        assert {user async for user, _ in site.visits.scan()} == {"bob"}
        await worker.advance("2 minutes")
        assert await site.visits.count() == 0


@pytest.mark.parametrize("is_called", [True, False])
async def test_a_deploy_that_adds_a_function_or_takes_it_away_keeps_the_times(
    emptied: str, is_called: bool
) -> None:
    """Of each value; what has one that passes by is told, or removed without a word."""
    ends = {"long": datetime.now(UTC) + timedelta(hours=1), "ann": datetime.now(UTC) + timedelta(seconds=2)}
    before, after = (Site(is_called=called, redis_url=emptied) for called in (not is_called, is_called))
    before.until = lambda seen: ends[seen.user]
    indices = KEYS.expiry(0, "visits"), KEYS.due(0, "visits")
    async with local_worker(before.app, url=emptied) as worker:
        await before.see(*ends)
        await worker.until_drained()
        assert await before.visits.count() == 2
    async with local_worker(after.app, url=emptied) as worker:

        async def is_over() -> bool:
            return await after.visits.get("ann") is None

        await wait_for_async(is_over, "the end has come")
        assert await rows(after, worker) == ([("ann", [1])] if is_called else [])
        assert await after.visits.get("long") == Visit("long", [1])
        execute = after.app.backend().execute
        assert int(await execute("ZSCORE", indices[is_called], "long")) == round(
            ends["long"].timestamp() * 1000
        )
        assert await execute("EXISTS", indices[not is_called]) == 0


async def test_a_fake_context_takes_ends_and_calls_the_function_by_hand() -> None:
    site = Site()
    with fake_context(processor=site.follow) as ctx:
        site.visits.set("ann", Visit("ann", [1]), until=datetime.now(UTC))
        assert ctx.table(site.visits) == {"ann": Visit("ann", [1])}
        assert await site.gone("ann", Visit("ann", [1]), ctx) == Visit("ann", [1])
        assert ctx.state == {"ended": 1}
