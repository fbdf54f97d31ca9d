"""The committer groups commits of many partitions and tells the truth about each."""

import asyncio
import re
from dataclasses import replace
from typing import Any

import anyio
import pytest

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.errors import RecordError
from streamworker.redisio.data.commit import CommitCode, CommitReply, CommitRequest, DeadEntry, commit_many
from streamworker.runtime.run import committer
from tests.chaos.proxy import proxied
from tests.runtime.workbench import Bench, bench, full_memory

pytestmark = pytest.mark.anyio


def request(lock: Acquired, new: EntryId, *, partition: int = 0, previous: EntryId = ZERO) -> CommitRequest:
    """A commit of one entry that forwards nothing."""
    return CommitRequest(
        partition=partition, owner="w1", epoch=lock.epoch, previous=previous, new=new, entries=1
    )


async def own(desk: Bench, partition: int) -> Acquired:
    """Take a partition's lock; entries 1-0 and 5-0 are there to be committed."""
    for entry_id in ("1-0", "5-0"):
        await desk.backend.execute("XADD", desk.keys.events(partition), entry_id, "v", "x")
    return await desk.acquire(partition, "w1")


async def test_commits_that_are_ready_together_share_a_round_trip(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty partitions commit at once in a handful of pipelines."""
    calls: list[int] = []

    async def counted(*given: Any) -> list[CommitReply]:
        calls.append(len(given[2]))
        return await commit_many(*given)

    monkeypatch.setattr(committer, "commit_many", counted)
    async with bench(redis_url, partitions=40) as desk:
        locks = [await own(desk, p) for p in range(40)]
        replies = await asyncio.gather(
            *(desk.commit(request(lock, EntryId(5, 0), partition=p)) for p, lock in enumerate(locks))
        )
        assert {reply.code for reply in replies} == {CommitCode.OK}
        assert len(calls) <= 2 and sum(calls) == 40


async def test_a_commit_without_an_answer_is_sent_again_and_recognised(redis_url: str) -> None:
    """The reply was lost, the commit was done: the second try says DUP, and the trouble was told."""
    async with proxied(redis_url) as proxy, bench(proxy.url) as desk:
        lock = await own(desk, 0)
        assert (await desk.commit(request(lock, EntryId(1, 0)))).code is CommitCode.OK
        troubles: list[CommitReply] = []
        proxy.only_after, proxy.lose = b"EVALSHA", 1
        again = request(lock, EntryId(5, 0), previous=EntryId(1, 0))
        reply = await desk.commit(again, on_trouble=troubles.append)
        assert reply.code is CommitCode.DUP
        assert [trouble.code for trouble in troubles] == [CommitCode.UNKNOWN]
        assert await desk.checkpoint() == "5-0"


async def test_a_refused_commit_is_sent_again_until_redis_takes_it(redis_url: str) -> None:
    """Out of memory is not the end: the commit waits, visibly, and is done once there is room."""
    async with bench(redis_url) as desk:
        lock = await own(desk, 0)
        troubled = anyio.Event()
        commit = replace(request(lock, EntryId(5, 0)), state={"a": b"1"})
        with full_memory(redis_url), anyio.fail_after(5):
            task = asyncio.create_task(desk.commit(commit, on_trouble=lambda _: troubled.set()))
            await troubled.wait()
        assert (await asyncio.wait_for(task, 10)).code is CommitCode.OK


@pytest.mark.parametrize("passed", [False, True])
async def test_a_commit_that_is_fenced_after_a_lost_reply_is_judged_by_the_checkpoint(
    redis_url: str, passed: bool
) -> None:
    """Below ours: it was not done. At or past ours: it was done, by us or by the next owner."""
    async with proxied(redis_url) as proxy, bench(proxy.url) as desk:
        lock = await own(desk, 0)
        assert (await desk.commit(request(lock, EntryId(1, 0)))).code is CommitCode.OK

        def overtaken(_: CommitReply) -> None:
            desk.tasks.start_soon(desk.acquire, 0, "w2")

        proxy.only_after, proxy.lose = b"EVALSHA", 1
        if not passed:
            # The first try is lost on its way: its epoch is one that never held the lock.
            lock = Acquired(lock.epoch - 1, lock.checkpoint, 0, 0, lock.log)
        commit = request(lock, EntryId(5, 0), previous=EntryId(1, 0))
        reply = await desk.commit(commit, on_trouble=overtaken)
        assert reply.code is (CommitCode.UNKNOWN if passed else CommitCode.FENCED)


async def test_a_submit_that_is_cancelled_leaves_the_others_alone(redis_url: str) -> None:
    """One of two commits that are sent together is cancelled; nobody hears of it, and the other is done."""
    async with bench(redis_url, partitions=2) as desk:
        locks = [await own(desk, p) for p in range(2)]
        tasks = [
            asyncio.create_task(desk.commit(request(locks[p], EntryId(5, 0), partition=p))) for p in range(2)
        ]
        await asyncio.sleep(0)
        tasks[0].cancel()
        assert (await asyncio.wait_for(tasks[1], 5)).code is CommitCode.OK
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]


async def test_a_commit_that_is_withdrawn_in_time_is_not_sent(redis_url: str) -> None:
    """Its runner was cancelled in the same turn of the event loop: nothing is done, nobody is told."""
    async with bench(redis_url) as desk:
        lock = await own(desk, 0)
        replies: list[CommitReply] = []
        ticket = desk.committer.hand_in(request(lock, EntryId(1, 0)), replies.append, print)
        ticket.withdrawn = True
        assert (await desk.commit(request(lock, EntryId(5, 0)))).code is CommitCode.OK
        assert not replies


async def test_a_commit_that_cannot_be_sent_ends_the_committer(redis_url: str) -> None:
    """Its partition would wait for ever; the worker must hear of it."""
    async with bench(redis_url) as desk:
        sender = committer.Committer(desk.backend, desk.keys, desk.settings, desk.rng)
        letter = DeadEntry(EntryId(1, 0), {b"%d" % n: b"" for n in range(5_000)}, "wrong", 1)
        refused = replace(request(await own(desk, 0), EntryId(1, 0)), dead=[letter])
        sender.hand_in(refused, lambda _: None, lambda _: None)
        with anyio.fail_after(10), pytest.raises(ExceptionGroup) as raised:
            await sender.run()
        assert raised.group_contains(RecordError, match="too many for a dead letter")


async def test_a_commit_without_results_runs_four_commands(redis_url: str) -> None:
    """At a low rate it is most of what a record costs the server, so each command counts."""
    async with bench(redis_url) as desk:
        lock = await own(desk, 0)
        near = desk.keys.lock(0)

        async def counts() -> dict[str, int]:
            text = (await desk.backend.execute("INFO", "commandstats", near=near)).decode()
            return {name: int(calls) for name, calls in re.findall(r"cmdstat_(\S+?):calls=(\d+)", text)}

        await desk.commit(request(lock, EntryId(1, 0)))  # Loads the script.
        before = await counts()
        await desk.commit(request(lock, EntryId(5, 0), previous=EntryId(1, 0)))
        after = await counts()
        made = {name: count - before.get(name, 0) for name, count in after.items()}
        ran = {
            name: count
            for name, count in made.items()
            if count and name not in ("info", "xread", "client|id")
        }
        assert ran == dict.fromkeys(("evalsha", "exists", "hmget", "xrange", "hset"), 1)
