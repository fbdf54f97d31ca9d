"""Reading partitions on one connection, and waking a read that waits."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.errors import BackendRefused, BackendUnavailable
from streamworker.records.entries import Entries
from streamworker.redisio.data import streams
from streamworker.redisio.wire.client import Backend, BlockingConnection
from tests.contract.support import STREAM, Group, Raw, url_of_user
from tests.helpers import wait_for_async

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]


@pytest.fixture
async def connection(backend: Backend) -> AsyncIterator[BlockingConnection]:
    """A connection on which reads may wait."""
    opened = backend.blocking()
    yield opened
    await opened.aclose()


async def waiting(
    raw: Raw, connection: BlockingConnection, partitions: int = 1
) -> "asyncio.Task[dict[int, Entries]]":
    """Return a read of the first partitions that waits at the server."""
    task = asyncio.create_task(
        streams.read(connection, STREAM, dict.fromkeys(range(partitions), ZERO), 10, 30_000)
    )
    await wait_for_async(lambda: raw.info("clients")["blocked_clients"] == 1, "a client is blocked")
    return task


async def test_a_read_brings_what_follows_each_position(group: Group, connection: BlockingConnection) -> None:
    """Several partitions at once, each from its own place, at most ``count`` of each."""
    first, second = await group.send(5, 0), await group.send(3, 1)
    answer = await streams.read(connection, STREAM, {0: first[1].id, 1: ZERO, 2: ZERO}, 2, 1_000)
    assert answer == {0: first[2:4], 1: second[:2]}


async def test_a_read_without_news_ends_with_nothing(group: Group, connection: BlockingConnection) -> None:
    (entry,) = await group.send(1)
    for block_ms in (0, 10):
        assert await streams.read(connection, STREAM, {0: entry.id, 1: ZERO}, 10, block_ms) == {}


async def test_a_waiting_read_gets_new_entries_at_once(
    group: Group, raw: Raw, connection: BlockingConnection
) -> None:
    task = await waiting(raw, connection, 2)
    entries = await group.send(1, 1)
    assert await task == {1: entries}


async def test_a_waiting_read_is_woken_from_outside(
    group: Group, raw: Raw, connection: BlockingConnection
) -> None:
    """It returns nothing at once, and the connection goes on being used."""
    task = await waiting(raw, connection)
    await connection.unblock()
    assert await task == {}
    entries = await group.send(2)
    assert await streams.read(connection, STREAM, {0: ZERO}, 10, 0) == {0: entries}


async def test_a_wake_that_comes_before_the_read_reaches_the_server_is_not_lost(
    connection: BlockingConnection,
) -> None:
    """Between sending the read and its blocking there is a moment: the wake is repeated then."""
    for _ in range(20):
        task = asyncio.create_task(streams.read(connection, STREAM, {0: ZERO}, 10, 30_000))
        await wait_for_async(lambda: connection._under_way, "the read was sent")
        await connection.unblock()
        assert await task == {}


async def test_waking_nobody_does_nothing(group: Group, connection: BlockingConnection) -> None:
    """A wake for a connection that does not wait has no effect on its next read."""
    await connection.unblock()
    entries = await group.send(1)
    assert await streams.read(connection, STREAM, {0: ZERO}, 10, 1_000) == {0: entries}
    await connection.unblock()


@pytest.mark.parametrize("missing", ["-client|unblock", "-client|id"])
async def test_a_user_who_may_not_unblock_wakes_by_closing(
    group: Group, raw: Raw, redis_url: str, missing: str
) -> None:
    """Without the right to CLIENT UNBLOCK the connection is cut, and made anew for the next read."""
    raw.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", missing)
    async with Backend.open(url_of_user(redis_url, "reader", "secret"), name="reader") as backend:
        connection = backend.blocking()
        task = await waiting(raw, connection)
        await connection.unblock()
        assert await task == {}
        entries = await group.send(1)
        assert await streams.read(connection, STREAM, {0: ZERO}, 10, 0) == {0: entries}
        await connection.aclose()
    raw.execute_command("ACL", "DELUSER", "reader")


async def test_a_waiting_read_whose_connection_is_killed_comes_back(
    group: Group, raw: Raw, connection: BlockingConnection
) -> None:
    """It says that there was no answer, and the next read connects anew."""
    task = await waiting(raw, connection)
    assert connection._link is not None
    raw.execute_command("CLIENT", "KILL", "ID", connection._link.client_id)
    with pytest.raises(BackendUnavailable):
        await task
    entries = await group.send(1)
    assert await streams.read(connection, STREAM, {0: ZERO}, 10, 0) == {0: entries}


async def test_a_server_that_becomes_a_replica_ends_the_wait(
    group: Group, raw: Raw, connection: BlockingConnection
) -> None:
    """Redis answers UNBLOCKED then: no news, but a reason to look where the primary is."""
    task = await waiting(raw, connection)
    try:
        raw.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(BackendUnavailable, match="replica"):
            await task
        with pytest.raises(BackendRefused, match="connect to the primary"):
            await group.backend.execute("SET", "a", "b")
    finally:
        raw.execute_command("REPLICAOF", "NO", "ONE")


async def test_entries_are_counted_up_to_a_position(
    group: Group, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the count takes several slices, and when part of the stream was trimmed."""
    monkeypatch.setattr(streams, "COUNT_ENTRIES", 7)
    key = STREAM.events(0)
    assert await streams.entries_up_to(group.backend, STREAM, 0, EntryId(5, 5)) == 0
    entries = await group.send(40)
    for place in (0, 6, 32, 39):
        assert await streams.entries_up_to(group.backend, STREAM, 0, entries[place].id) == place + 1
    assert await streams.entries_up_to(group.backend, STREAM, 0, ZERO) == 0
    raw.xtrim(key, maxlen=10, approximate=False)
    assert await streams.entries_up_to(group.backend, STREAM, 0, entries[32].id) == 33
    assert await streams.entries_up_to(group.backend, STREAM, 0, ZERO) == 30
