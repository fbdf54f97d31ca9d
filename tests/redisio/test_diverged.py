"""Targets that know more than their source, as `doctor` and `repair` find them."""

from typing import Any

import pytest

from streamworker.core.data.outbox import Message, OutboxPosition
from streamworker.redisio.admin.outboxes import Diverged, find_diverged
from streamworker.redisio.data import outbox
from streamworker.redisio.keys import OutboxKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from tests.contract.support import GROUP, TO, chain

pytestmark = pytest.mark.anyio
KEYS = GROUP.outbox(0)


async def _put(backend: Backend, *messages: Message) -> None:
    """Put messages into the outbox, as commits do."""
    for each in messages:
        fields = ("to", str(each.to), "since", str(each.since), "through", str(each.through))
        await backend.execute("XADD", KEYS.messages, str(each.id), *fields, "data", each.data)
        await backend.execute("HSET", KEYS.heads, "#", str(each.id), str(each.to), str(each.through))


async def _forward(backend: Backend, *messages: Message) -> None:
    """Forward messages and delete them, as their owner does."""
    await outbox.forward_many(backend, "shop", [(KEYS.source, each) for each in messages])
    await outbox.delete_messages(backend, {KEYS: [each.id for each in messages]})


async def test_a_target_that_goes_on_meanwhile_is_not_taken_for_one_that_knows_more(
    emptied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source's messages are read, it takes these and more, and then its place is read."""
    first, second = chain(2)
    read = outbox.read_messages
    late = [second]

    async def read_and_go_on(backend: Backend, keys: OutboxKeys, *args: Any) -> list[Message]:
        found = await read(backend, keys, *args)
        if not found and late:
            await _put(backend, late.pop())
            await _forward(backend, first, second)
        return found

    monkeypatch.setattr(outbox, "read_messages", read_and_go_on)
    async with Backend.open(emptied, name="doctor") as backend:
        await _put(backend, first)
        assert await find_diverged(backend, GROUP, 1) == []
        assert not late


async def test_a_source_goes_on_behind_a_message_that_came_back(emptied: str) -> None:
    """The target has taken that message and later ones, so that it must not be sent again."""
    first, second, third = chain(3)
    async with Backend.open(emptied, name="doctor") as backend:
        await _put(backend, first, second, third)
        await _forward(backend, second)
        await backend.execute(
            "HSET", StreamKeys("shop", TO.stream).taken(TO.partition), KEYS.source, "9-0123456789ab"
        )
        stands = OutboxPosition(9, "0123456789ab")
        assert await find_diverged(backend, GROUP, 1) == [Diverged(0, TO, stands, third.since)]
