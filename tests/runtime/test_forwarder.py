"""The forwarder of outboxes, on a real server."""

import random

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from streamworker.core.data.entries import ZERO
from streamworker.core.data.outbox import Message
from streamworker.redisio.data import streams
from streamworker.redisio.data.outbox import OutboxWrite
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.forward.forwarder import Forwarder, Source
from streamworker.settings import Settings
from tests.contract.support import GROUP, TO, chain
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio


async def test_messages_are_forwarded_once_though_their_target_moves_to_another_node(
    emptied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target moves between two commits, before a message is under way: it waits at both nodes then."""
    node = "one"
    messages = chain(5)
    async with Backend.open(emptied, name="forwarder") as backend, anyio.create_task_group() as tasks:
        monkeypatch.setattr(backend, "known_place_of", lambda _: node)
        forwarder = Forwarder(backend, "shop", Settings(), random.Random(1))
        tasks.start_soon(forwarder.run)
        await anyio.lowlevel.checkpoint()
        source = Source(GROUP.outbox(0), forwarder, 0, lambda _: None)
        source.committed(OutboxWrite("", messages[:3], 100))
        node = "another"
        source.committed(OutboxWrite(str(messages[2].id), messages[3:4], 100))
        await source.settle()
        source.committed(OutboxWrite(str(messages[3].id), messages[4:], 100))
        await source.settle()
        assert source.is_idle
        assert source.taken == [message.id for message in messages]
        found = await streams.range_entries(
            backend, StreamKeys("shop", TO.stream).events(TO.partition), ZERO, None, 100
        )
        assert len(found) == sum(message.through.records - message.since.records for message in messages)
        tasks.cancel_scope.cancel()


async def test_a_target_that_knows_more_is_told_though_it_was_held_up_before(emptied: str) -> None:
    """As after a failover: first nobody reaches it, and then it has records that the source has lost."""
    keys, taken, reasons = GROUP.outbox(0), StreamKeys("shop", TO.stream).taken(TO.partition), list[str]()
    async with Backend.open(emptied, name="forwarder") as backend, anyio.create_task_group() as tasks:
        forwarder = Forwarder(backend, "shop", Settings(), random.Random(1))
        tasks.start_soon(forwarder.run)
        await anyio.lowlevel.checkpoint()
        source = Source(keys, forwarder, 0, reasons.append)
        (message,) = chain(1)
        await backend.execute("XADD", keys.messages, str(message.id), "to", str(TO), *_fields(message))
        await backend.execute("SET", taken, "of another type")
        with capture_logs() as logs:
            source.committed(OutboxWrite("", [message], 100))
            await wait_for_async(lambda: any("does not take" in why for why in reasons), "it is held up")
            await backend.execute("DEL", taken)
            await backend.execute("HSET", taken, keys.source, "9-0123456789ab")
            await wait_for_async(lambda: "has records" in reasons[-1], "it is seen to know more")
        tasks.cancel_scope.cancel()
    (told,) = (log for log in logs if log["event"] == "outbox_diverged")
    assert told["stands"] == "9-0123456789ab"


async def test_a_message_that_a_failover_brought_back_is_found_taken_and_deleted(emptied: str) -> None:
    """Its target has it, so that it is not sent again, and it does not wait for the next owner."""
    keys, messages = GROUP.outbox(0), chain(3)
    async with Backend.open(emptied, name="forwarder") as backend, anyio.create_task_group() as tasks:
        forwarder = Forwarder(backend, "shop", Settings(), random.Random(1))
        tasks.start_soon(forwarder.run)
        await anyio.lowlevel.checkpoint()
        source = Source(keys, forwarder, 0, lambda _: None)
        forwarder._sources[keys] = source
        source.committed(OutboxWrite("", messages, 100))
        await source.settle()
        head = (str(TO), str(messages[-1].through))
        await backend.execute("HSET", keys.heads, "#", str(messages[-1].id), *head)
        back = messages[1]
        await backend.execute("XADD", keys.messages, str(back.id), "to", str(TO), *_fields(back))
        source.look_again()

        async def is_gone() -> bool:
            return bool(await backend.execute("XLEN", keys.messages) == 0)

        await wait_for_async(is_gone, "it is deleted")
        events = StreamKeys("shop", TO.stream).events(TO.partition)
        found = await streams.range_entries(backend, events, ZERO, None, 100)
        assert len(found) == sum(message.through.records - message.since.records for message in messages)
        tasks.cancel_scope.cancel()


def _fields(message: Message) -> tuple[bytes | str, ...]:
    return "since", str(message.since), "through", str(message.through), "data", message.data
