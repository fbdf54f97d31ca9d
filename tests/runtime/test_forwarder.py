"""The forwarder of outboxes, on a real server."""

import random

import anyio
import anyio.lowlevel
import pytest

from streamworker.core.data.entries import ZERO
from streamworker.redisio.data import streams
from streamworker.redisio.data.outbox import OutboxWrite
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.forward.forwarder import Forwarder, Source
from streamworker.settings import Settings
from tests.contract.support import GROUP, TO, chain

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
