"""A send or a commit counts when it is as safe as was asked for, and not before."""

import asyncio
from itertools import product
from typing import Any

import pytest

from streamworker.core.data.channel import AppendCode
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.outbox import OutboxQueue
from streamworker.errors import ConfigurationError, ProducerError
from streamworker.redisio.data.commit import CommitCode, CommitReply, CommitRequest, commit_many
from streamworker.redisio.data.outbox import forward_many
from streamworker.redisio.data.streams import Append, append_many
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import Durability, NotDurable
from tests.contract.support import TO, chain
from tests.helpers import PATIENCE_S, wait_for_async
from tests.runtime.workbench import Bench, Order, bench
from tests.stage.pair import Pair
from tests.stage.server import Server

pytestmark = pytest.mark.anyio

REPLICA = Durability("replicas", 1, 100)
DISK = Durability("aof", timeout_ms=100)
QUICK: dict[str, Any] = {"durability_timeout_ms": 100, "grace_period_ms": 1_000}


async def first_commit(desk: Bench) -> CommitRequest:
    """Write an entry, take its partition, and return the commit of the entry."""
    await desk.backend.execute("XADD", desk.keys.events(0), "5-0", "v", "x")
    lock = await desk.acquire(0, "w1")
    return CommitRequest(
        partition=0, owner="w1", epoch=lock.epoch, previous=ZERO, new=EntryId(5, 0), entries=1
    )


async def by_another_connection(
    url: str, desk: Bench, request: CommitRequest, durability: Durability
) -> CommitReply:
    async with Backend.open(url, name="another", connections=1) as backend:
        (reply,) = await commit_many(backend, desk.keys, [request], durability)
    return reply


# -- replicas ----------------------------------------------------------------------------------


async def test_a_send_returns_when_a_replica_has_it(pair: Pair) -> None:
    """While the replica is stopped nobody is told; when it goes on, the same send is confirmed, once."""
    async with bench(pair.primary.url, durability="replicas", **QUICK) as desk:
        await desk.producer.send(Order(1))
        pair.replica.pause()
        with pytest.raises(ProducerError, match=r'as durability="replicas" asks.*0 of 1 replicas'):
            await desk.producer.send(Order(2), timeout=2)
        sending = asyncio.create_task(desk.producer.send(Order(3)))
        await asyncio.sleep(0.5)
        assert not sending.done()
        pair.replica.resume()
        sent = await asyncio.wait_for(sending, PATIENCE_S)
        ids = await desk.ids()
        assert ids[-1] == str(sent.entry_id) and len(ids) == 3
        with pair.replica.client() as replica:
            assert replica.xlen(desk.stream_keys.events(0)) == 3


async def test_a_commit_that_no_replica_has_is_unknown_and_in_plain_sight(pair: Pair) -> None:
    """Others see the checkpoint at once, and may go on from it; it is confirmed when a replica has it.

    A repeat on another connection finds it there and has nothing to write, which proves nothing.
    """
    async with bench(pair.primary.url) as desk:
        request = await first_commit(desk)
        pair.replica.pause()
        (reply,) = await commit_many(desk.backend, desk.keys, [request], REPLICA)
        assert (reply.code, type(reply.error)) == (CommitCode.UNKNOWN, NotDurable)
        assert "0 of 1 replicas had it within 100 ms" in str(reply.error)
        assert await desk.checkpoint() == "5-0"
        for _ in range(2):
            again = await by_another_connection(pair.primary.url, desk, request, REPLICA)
            assert (again.code, type(again.error)) == (CommitCode.UNKNOWN, NotDurable)
        pair.replica.resume()
        await until_dup(pair.primary.url, desk, request)


async def until_dup(url: str, desk: Bench, request: CommitRequest) -> None:
    async def confirmed() -> bool:
        reply = await by_another_connection(url, desk, request, REPLICA)
        assert reply.code in (CommitCode.DUP, CommitCode.UNKNOWN)
        return reply.code is CommitCode.DUP

    await wait_for_async(confirmed, "the replica has it")


@pytest.mark.parametrize(
    ("what", "full_memory"),
    [("commit", False), ("commit", True), ("append", False), *product(("DUP", "OTHER"), (False, True))],
)
async def test_a_repeat_writes_what_is_there_once_more(pair: Pair, what: str, full_memory: bool) -> None:
    """So the wait behind it is for a write of its own. A commit may always write that."""
    async with bench(pair.primary.url) as desk:
        request = await first_commit(desk)
        append = Append(0, "p", 1, 0, [b"x"])

        async def do() -> CommitCode | AppendCode:
            if what == "commit":
                return (await commit_many(desk.backend, desk.keys, [request]))[0].code
            if what == "append":
                return (await append_many(desk.backend, desk.stream_keys, [append]))[0].code
            return (await forward_many(desk.backend, "shop", [("orders/0/price", its[what])]))[0].code

        first, second = chain(2)
        its = {"DUP": second, "OTHER": first}
        await forward_many(desk.backend, "shop", [("orders/0/price", each) for each in (first, second)])
        await do()
        with pair.primary.client() as client:
            try:
                if full_memory:
                    client.config_set("maxmemory", 1)
                before = client.info("replication")["master_repl_offset"]
                assert (await do()).value == (what if what == "OTHER" else "DUP")
                written = client.info("replication")["master_repl_offset"] - before
            finally:
                client.config_set("maxmemory", "1gb")
        assert written > 30


async def test_messages_that_no_replica_has_are_not_deleted_at_their_source(pair: Pair) -> None:
    """Also if the target says to one of them that it has both by now: a failover may still lose them."""
    async with bench(pair.primary.url) as desk:
        queue = OutboxQueue(TO)
        for each in chain(2):
            queue.put(each)
        pair.replica.pause()

        async def forward(most: int, durability: Durability) -> list[EntryId]:
            its = [("orders/0/price", each) for each in queue.begin(most)]
            taken, _ = queue.answered(await forward_many(desk.backend, "shop", its, durability))
            queue.is_busy = False
            return taken

        assert await forward(10**6, REPLICA) == []
        for _ in range(2):
            assert await forward(1, REPLICA) == []
        pair.replica.resume()
        taken: list[EntryId] = []

        async def confirmed() -> bool:
            taken.extend(await forward(1, REPLICA))
            return len(taken) == 2

        await wait_for_async(confirmed, "the replica has both")


async def test_a_send_that_cannot_be_repeated_by_writing_is_unknown(pair: Pair) -> None:
    """With full memory the repeat of a send may write nothing, and the wait behind it says nothing."""
    async with bench(pair.primary.url) as desk:
        append = Append(0, "p", 1, 0, [b"x"])
        await append_many(desk.backend, desk.stream_keys, [append], REPLICA)
        with pair.primary.client() as client:
            client.config_set("maxmemory", 1)
            try:
                (reply,) = await append_many(desk.backend, desk.stream_keys, [append], REPLICA)
                (careless,) = await append_many(desk.backend, desk.stream_keys, [append])
            finally:
                client.config_set("maxmemory", "1gb")
        assert (reply.code, careless.code) == (AppendCode.UNKNOWN, AppendCode.DUP)
        assert "out of memory" in str(reply.error)

        async def confirmed() -> bool:
            # On a busy machine the replica may not have it within the 100 ms of one wait.
            (reply,) = await append_many(desk.backend, desk.stream_keys, [append], REPLICA)
            assert reply.code in (AppendCode.DUP, AppendCode.UNKNOWN)
            return reply.code is AppendCode.DUP

        await wait_for_async(confirmed, "the replica has it")


async def test_a_script_that_the_server_forgot_is_waited_for_too(pair: Pair) -> None:
    """The wait stands behind the call that did it, not behind the one that was not known."""
    async with bench(pair.primary.url) as desk:
        request = await first_commit(desk)
        pair.replica.pause()
        with pair.primary.client() as client:
            client.script_flush()
        (reply,) = await commit_many(desk.backend, desk.keys, [request], REPLICA)
        assert reply.code is CommitCode.UNKNOWN
        assert await desk.checkpoint() == "5-0"
        pair.replica.resume()


async def test_a_refusal_needs_no_replica(pair: Pair) -> None:
    """What wrote nothing is told at once as what it is, so that a fenced worker stops."""
    async with bench(pair.primary.url) as desk:
        request = await first_commit(desk)
        later = await desk.acquire(0, "w2")
        pair.replica.pause()
        await desk.backend.execute("SET", "a", 1)
        (reply,) = await commit_many(desk.backend, desk.keys, [request], REPLICA)
        assert (reply.code, reply.epoch) == (CommitCode.FENCED, later.epoch)
        pair.replica.resume()


# -- the disk ----------------------------------------------------------------------------------


async def test_nothing_counts_while_the_disk_is_not_written_to(durable: Server) -> None:
    """The server's fsync is stopped: sends and commits are there, and nobody is told so until it goes on."""
    async with bench(durable.url, durability="aof", **QUICK) as desk:
        request = await first_commit(desk)
        append = Append(0, "p", 1, 0, [b"x"])
        await desk.producer.send(Order(0))
        await desk.backend.execute("CONFIG", "SET", "appendfsync", "no")
        (committed,) = await commit_many(desk.backend, desk.keys, [request], DISK)
        assert committed.code is CommitCode.UNKNOWN
        assert "not on the server's disk within 100 ms" in str(committed.error)
        (appended,) = await append_many(desk.backend, desk.stream_keys, [append], DISK)
        assert appended.code is AppendCode.UNKNOWN
        again = await by_another_connection(durable.url, desk, request, DISK)
        assert again.code is CommitCode.UNKNOWN
        with pytest.raises(ProducerError, match="not on the server's disk"):
            await desk.producer.send(Order(1), timeout=2)
        await desk.backend.execute("CONFIG", "SET", "appendfsync", "always")
        assert (await commit_many(desk.backend, desk.keys, [request], DISK))[0].code is CommitCode.DUP
        assert (await append_many(desk.backend, desk.stream_keys, [append], DISK))[0].code is AppendCode.DUP
        await desk.producer.send(Order(2), timeout=5)


# -- what cannot work --------------------------------------------------------------------------


async def test_memory_is_the_default_and_sends_no_wait(pair: Pair) -> None:
    with pair.primary.client() as client:
        client.config_resetstat()
        async with bench(pair.primary.url) as desk:
            request = await first_commit(desk)
            await desk.producer.send(Order(1))
            assert (await desk.commit(request)).code is CommitCode.OK
        assert not {"cmdstat_wait", "cmdstat_waitaof"} & set(client.info("commandstats"))


async def test_a_server_that_is_too_old_is_refused(redis7: Server) -> None:
    async with bench(redis7.url, durability="aof") as desk:
        with pytest.raises(ConfigurationError, match="needs WAITAOF, which this server does not know"):
            await desk.producer.send(Order(1))
