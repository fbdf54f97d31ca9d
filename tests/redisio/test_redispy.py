"""What is used of redis-py's connection, private names among it: a new version must pass this."""

import asyncio
import contextlib

import anyio
import pytest
from redis import exceptions

from streamworker.errors import BackendUnavailable
from streamworker.redisio.wire.link import Argument, Endpoint, Link, pack, pack_all
from streamworker.redisio.wire.redispy import Socket

TOO_MUCH = 64_000_000
"""More bytes than fit into the buffers of a connection."""


@pytest.mark.parametrize(
    "url", ["redis://me:secret@localhost/3", "rediss://me:secret@localhost/3", "unix://me:secret@/run/r?db=3"]
)
def test_a_connection_has_no_policy_of_redis_py(url: str) -> None:
    """No retry, no timeout on the socket, no notifications: each was measured to do harm. And no login."""
    connection = Endpoint(url, "a name").socket()._connection
    assert connection.socket_timeout is None
    assert connection.retry.get_retries() == 0
    assert connection.protocol == 2
    assert not connection.health_check_interval
    known = connection.username, connection.password, connection.client_name, connection.driver_info
    assert not any(known) and not connection.db
    notifications = getattr(connection, "maint_notifications_config", None)  # redis-py has them since 8.1.
    assert notifications is None or not notifications.enabled


@pytest.mark.anyio
@pytest.mark.parametrize("size", [1, 5_000], ids=["in one read", "in many reads"])
async def test_replies_that_come_together_are_taken_together(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """In their order, refusals among them; to wait for each cost more than to take it."""
    link = Link(Endpoint(redis_url, "test"))
    await link.ready()
    stream = link._socket._connection._reader
    assert stream is not None
    read, waits = stream.read, 0

    async def counted(size: int) -> bytes:
        nonlocal waits
        waits += 1
        return await read(size)

    monkeypatch.setattr(stream, "read", counted)
    texts = [b"%d" % n + b"x" * size for n in range(300)]
    commands: list[tuple[Argument, ...]] = [("ECHO", text) for text in texts]
    commands[100:100] = [("NOSUCH",)]
    answers = await link.roundtrip(pack_all(commands), len(commands))
    await link.close()
    assert isinstance(answers.pop(100), exceptions.ResponseError)
    assert answers == texts
    assert waits < 200


@pytest.mark.parametrize("way", ["abort", "close"])
@pytest.mark.parametrize("use_uvloop", [False, True])
def test_a_connection_that_was_lost_as_it_is_written_to_is_an_error_of_ours(
    redis_url: str, use_uvloop: bool, way: str
) -> None:
    """Each event loop, and each Python, raises its own error, some no OSError: it ended workers whose primary
    died.
    """

    async def main() -> None:
        link = Link(Endpoint(redis_url, "t"))
        await link.ready()
        writer = link._socket._connection._writer
        assert writer is not None
        getattr(writer.transport, way)()
        await asyncio.sleep(0.05)
        with pytest.raises(BackendUnavailable):
            await link.roundtrip(pack(("PING",)), 1)
        await link.ready()
        assert await link.roundtrip(pack(("PING",)), 1) == [b"PONG"]
        await link.close()

    anyio.run(main, backend_options={"use_uvloop": use_uvloop})


@pytest.mark.anyio
async def test_a_socket_that_was_closed_is_connected_again_by_its_owner_only(redis_url: str) -> None:
    """A write would connect without a login, and go past the gate and the question who is the primary."""
    target = Endpoint(redis_url, "t")
    socket = target.socket()
    await target.connect(socket)
    await socket.hang_up()
    assert not socket.is_open
    with pytest.raises(exceptions.ConnectionError):
        await socket.write(pack(("PING",)))
    assert not socket.is_open
    await target.connect(socket)
    await socket.write(pack(("PING",)))
    assert await socket.reply() == b"PONG"
    await socket.hang_up()


@pytest.mark.anyio
async def test_hanging_up_waits_for_no_end_that_reads_nothing() -> None:
    """An orderly close sends what is left first: a server that hangs keeps the connection."""
    received: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    may_read = asyncio.Event()

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await may_read.wait()
        count = 0
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1_000_000):
                count += len(data)
        received.set_result(count)
        writer.close()

    async with await asyncio.start_server(hangs, "127.0.0.1", 0) as server:
        socket = Socket({"host": "127.0.0.1", "port": server.sockets[0].getsockname()[1]})
        await socket.open()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await socket.write(b"x" * TOO_MUCH)
        await socket.hang_up()
        may_read.set()
        assert await asyncio.wait_for(received, 10) < TOO_MUCH
