"""The forwarder of outboxes, on a real server."""

import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from streamworker.core.data.entries import ZERO
from streamworker.core.data.outbox import Message
from streamworker.redisio.data import outbox, streams
from streamworker.redisio.data.outbox import OutboxWrite
from streamworker.redisio.keys import OutboxKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.forward.forwarder import Forwarder
from streamworker.settings import Settings
from tests.contract.support import GROUP, TO, chain, message
from tests.helpers import wait_for_async
from tests.raw import opened
from tests.stage.server import Server, newest_aof

pytestmark = pytest.mark.anyio

KEYS = GROUP.outbox(0)
PRICED = StreamKeys("shop", TO.stream)


@pytest.fixture
async def backend(emptied: str) -> AsyncIterator[Backend]:
    async with Backend.open(emptied, name="forwarder") as opened:
        yield opened


@asynccontextmanager
async def forwarding(backend: Backend) -> AsyncIterator[Forwarder]:
    """Run a forwarder."""
    async with anyio.create_task_group() as tasks:
        forwarder = Forwarder(backend, "shop", Settings(), random.Random(1))
        tasks.start_soon(forwarder.run)
        await anyio.lowlevel.checkpoint()
        yield forwarder
        tasks.cancel_scope.cancel()


async def store(backend: Backend, messages: Sequence[Message], keys: OutboxKeys = KEYS) -> OutboxWrite:
    """Put messages into an outbox, as a commit does."""
    for each in messages:
        fields = "since", str(each.since), "through", str(each.through), "data", each.data
        await backend.execute("XADD", keys.messages, str(each.id), "to", str(TO), *fields)
        head = (str(TO), str(each.through))
        await backend.execute("HSET", keys.heads, "#", str(each.id), *head)
    return OutboxWrite("", messages, 100)


async def until_deleted(backend: Backend, keys: OutboxKeys = KEYS) -> None:
    async def is_empty() -> bool:
        return bool(await backend.execute("XLEN", keys.messages) == 0)

    await wait_for_async(is_empty, "all messages are deleted")


async def assert_taken_once(backend: Backend, messages: Sequence[Message]) -> None:
    found = await streams.range_entries(backend, PRICED.events(TO.partition), ZERO, None, 100)
    assert len(found) == messages[-1].through.records


async def test_messages_are_forwarded_once_though_their_target_moves_to_another_node(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target moves between two commits, before a message is under way: it waits at both nodes then."""
    node = "one"
    messages = chain(5)
    monkeypatch.setattr(backend.server, "known_address_of", lambda _: node)
    async with forwarding(backend) as forwarder:
        source, _ = await forwarder.open(KEYS, lambda _: None)
        await store(backend, messages)
        source.committed(OutboxWrite("", messages[:3], 100))
        node = "another"
        source.committed(OutboxWrite(str(messages[2].id), messages[3:4], 100))
        await source.settle()
        source.committed(OutboxWrite(str(messages[3].id), messages[4:], 100))
        await source.settle()
        assert source.is_idle
        await until_deleted(backend)
        await assert_taken_once(backend, messages)


async def test_a_target_that_knows_more_is_told_though_it_was_held_up_before(backend: Backend) -> None:
    """As after a failover: first nobody reaches it, and then it has records that the source has lost."""
    taken, reasons = PRICED.taken(TO.partition), list[str]()
    await backend.execute("SET", taken, "of another type")
    async with forwarding(backend) as forwarder:
        source, _ = await forwarder.open(KEYS, reasons.append)
        with capture_logs() as logs:
            source.committed(await store(backend, chain(1)))
            await backend.execute("DEL", KEYS.heads)
            await wait_for_async(lambda: any("does not take" in why for why in reasons), "it is held up")
            # In one step, or the message is taken in between.
            await backend.pipeline([("DEL", taken), ("HSET", taken, KEYS.source, "9-0123456789ab")])
            await wait_for_async(lambda: "has records" in reasons[-1], "it is seen to know more")
    (told,) = (log for log in logs if log["event"] == "outbox_diverged")
    assert told["stands"] == "9-0123456789ab"


async def test_a_message_that_a_failover_brought_back_is_found_taken_and_deleted(backend: Backend) -> None:
    """Its target has it, so that it is not sent again, and it waits for no other message or owner."""
    messages = chain(3)
    await store(backend, messages)
    async with forwarding(backend) as forwarder:
        source, _ = await forwarder.open(KEYS, lambda _: None)
        await until_deleted(backend)
        await wait_for_async(lambda: forwarder._to_delete._waiters, "nothing is left to delete")
        heads = await backend.execute("HGETALL", KEYS.heads)
        await backend.execute("DEL", KEYS.messages)
        await store(backend, messages[1:2])
        await backend.execute("HSET", KEYS.heads, *heads)
        source.look_again()
        await until_deleted(backend)
        await assert_taken_once(backend, messages)


@pytest.mark.parametrize("is_lost", ["what the target took", "what the source sent"])
async def test_a_server_that_comes_back_without_its_last_writes_gets_what_its_outbox_holds(
    tmp_path: Path, is_lost: str
) -> None:
    """What was deleted for an answer from before, or forwarded from memory, would be lost or too much."""
    messages, taken, held = chain(3), PRICED.taken(TO.partition), list[str]()
    left = messages if is_lost == "what the target took" else messages[:1]
    with Server(tmp_path, port=0) as server, opened(server.url) as raw:
        async with Backend.open(server.url, name="forwarder") as backend, forwarding(backend) as forwarder:
            source, _ = await forwarder.open(KEYS, held.append)
            await store(backend, left)
            raw.execute_command("WAITAOF", 1, 0, 10_000)
            size = newest_aof(tmp_path).stat().st_size
            if is_lost == "what the target took":
                raw.rename(KEYS.messages, "away")  # The source refuses to delete.
                raw.set(KEYS.messages, "x")
                source.committed(OutboxWrite("", messages, 100))
                await source.settle()
                assert source.is_idle
            else:
                raw.set(taken, "of another type")
                source.committed(OutboxWrite("", left, 100))
                source.committed(await store(backend, messages[1:]))
                await wait_for_async(lambda: held, "the target takes nothing")
            server.kill()
            os.truncate(newest_aof(tmp_path), size)
            server.start()
            await wait_for_async(lambda: not raw.xlen(KEYS.messages), "all messages are deleted")
            assert raw.hget(taken, KEYS.source) == str(left[-1].through).encode()
            assert raw.xlen(PRICED.events(TO.partition)) == len(left)


async def test_nothing_holds_up_an_outbox_in_which_nothing_waits(backend: Backend) -> None:
    """The target took the message from an earlier try, and could not say so until now."""
    messages, reasons, taken = chain(2), list[str](), PRICED.taken(TO.partition)
    await outbox.forward_many(backend, "shop", [(KEYS.source, each) for each in messages])
    await store(backend, messages)
    await backend.execute("XDEL", KEYS.messages, str(messages[1].id))
    await backend.execute("RENAME", taken, f"{taken}:aside")
    await backend.execute("SET", taken, "of another type")
    async with forwarding(backend) as forwarder:
        await forwarder.open(KEYS, reasons.append)
        await wait_for_async(lambda: reasons, "it is held up")
        await backend.execute("RENAME", f"{taken}:aside", taken)
        await wait_for_async(lambda: reasons[-1] == "", "it goes on")


async def test_what_a_server_refused_to_delete_is_deleted_later(backend: Backend) -> None:
    """Or the outbox would be full of messages that nobody forwards. Other outboxes do not wait."""
    messages, other = chain(3), GROUP.outbox(1)
    with capture_logs() as logs:
        async with forwarding(backend) as forwarder:
            source, _ = await forwarder.open(KEYS, lambda _: None)
            write = await store(backend, messages)
            await store(backend, messages, other)
            await backend.execute("RENAME", KEYS.messages, f"{KEYS.messages}:aside")
            await backend.execute("SET", KEYS.messages, "of another type")
            source.committed(write)
            await forwarder.open(other, lambda _: None)
            await until_deleted(backend, other)
            await wait_for_async(
                lambda: any(log["event"] == "outbox_not_trimmed" for log in logs), "it is told"
            )
            await backend.execute("RENAME", f"{KEYS.messages}:aside", KEYS.messages)
            await until_deleted(backend)


async def test_what_was_taken_is_deleted_though_the_outbox_is_given_up(backend: Backend) -> None:
    """Nothing waits in it, so nothing is to be seen there while no worker runs."""
    await store(backend, chain(3))
    async with forwarding(backend) as forwarder:
        source, _ = await forwarder.open(KEYS, lambda _: None)
        await source.settle()
        source.close()
        await until_deleted(backend)


async def test_an_answer_of_the_past_is_no_loss(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not know the script until another worker needs it runs the second message first."""
    messages, forward_many = chain(2), outbox.forward_many
    await store(backend, messages)

    async def second_first(backend: Backend, app: str, sent: Sequence[Any], durability: Any) -> list[Any]:
        if len(sent) == 1:
            return await forward_many(backend, app, sent, durability)
        late = await forward_many(backend, app, sent[1:], durability)
        return [*await forward_many(backend, app, sent[:1], durability), *late]

    monkeypatch.setattr(outbox, "forward_many", second_first)
    with capture_logs() as logs:
        async with forwarding(backend) as forwarder:
            await forwarder.open(KEYS, lambda _: None)
            await until_deleted(backend)
    assert logs == []
    assert [each.lost for each in await outbox.read_heads(backend, [KEYS])] == [{}]
    await assert_taken_once(backend, messages)


async def test_a_full_target_is_asked_with_one_message(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the server takes in a megabyte with each try, several times a second, while it is behind."""
    first = message(1, limit=1)
    messages = [first, message(2, first.through, limit=2)]
    await streams.append_many(backend, PRICED, [streams.Append(TO.partition, "p", 1, 0, [b"x"])])
    await store(backend, messages)
    sizes, reasons, forward_many = list[int](), list[str](), outbox.forward_many

    async def counted(backend: Backend, app: str, sent: Sequence[Any], durability: Any) -> list[Any]:
        sizes.append(len(sent))
        return await forward_many(backend, app, sent, durability)

    monkeypatch.setattr(outbox, "forward_many", counted)
    async with forwarding(backend) as forwarder:
        await forwarder.open(KEYS, reasons.append)
        await wait_for_async(lambda: reasons and "is full" in reasons[-1], "it is full")
        assert sizes == [2, *[1] * (len(sizes) - 1)]
        await backend.execute("XTRIM", PRICED.events(TO.partition), "MAXLEN", 0)
        await until_deleted(backend)
