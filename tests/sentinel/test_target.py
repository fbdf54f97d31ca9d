"""Connections by way of sentinels: to the primary, and away from what is one no more."""

import asyncio
import time
from collections.abc import Callable

import pytest

from streamworker.errors import AuthenticationFailed, BackendRefused, BackendUnavailable
from streamworker.redisio.wire import sentinel as sentinel_module
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.node import Node
from streamworker.redisio.wire.sentinel import SentinelTarget
from streamworker.spark.source.connection import Connection
from tests.helpers import PATIENCE_S, wait_for_async
from tests.stage.server import Server
from tests.stage.trio import SERVICE, Trio
from tests.stub import stub

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.full("sentinels, replicas and failovers, which take seconds each"),
]

LEAST_RIGHTS = ("+client|setname", "+sentinel|get-master-addr-by-name")
MORE_RIGHTS = (
    *("+ping", "+subscribe", "+sentinel|master"),
    *("&+odown", "&+promoted-slave", "&+switch-master"),
)
"""Of a user of a sentinel, as docs/sentinel.md has them."""

CALL_TIMEOUT_MS = 2_500
"""The default; what is told by sentinels must not take as long."""


async def port_of(backend: Backend) -> int:
    told = await backend.execute("CONFIG", "GET", "port")
    return int(told[1])


def names(host: str, port: int, epoch: int) -> Callable[[list[bytes]], bytes]:
    def bulk(text: object) -> bytes:
        data = str(text).encode()
        return b"$%d\r\n%s\r\n" % (len(data), data)

    def answer(words: list[bytes]) -> bytes:
        match [word.upper() for word in words[:2]]:
            case [b"SENTINEL", b"MASTER"]:
                fields = ("ip", host, "port", port, "config-epoch", epoch)
                return b"*6\r\n" + b"".join(map(bulk, fields))
            case [b"SENTINEL", _]:
                return b"*2\r\n" + bulk(host) + bulk(port)
            case _:
                return b"+OK\r\n"

    return answer


def url_by(trio: Trio, *ports: int) -> str:
    """Return the URL of a trio by way of other sentinels."""
    places = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"redis+sentinel://:{trio.password}@{places}/0?service={SERVICE}"


def says_primary(words: list[bytes]) -> bytes:
    return b"*2\r\n$4\r\nrole\r\n$6\r\nmaster\r\n" if words[0] == b"HELLO" else b"+OK\r\n"


@pytest.mark.parametrize("by", ["a worker", "Spark"])
async def test_what_a_user_gets_wrong_is_named(calm: Trio, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """The name of the service, the sentinels' password, that of Redis; at once, and without a password."""

    async def call(url: str) -> None:
        if by == "Spark":
            monkeypatch.setenv("STREAMWORKER_CONNECTION_WRONG", url)
            await asyncio.to_thread(Connection("wrong", 60_000).call, lambda client: client.ping())
        else:
            async with Backend.open(url, name="t") as backend:
                await backend.execute("PING")

    setting = "connection's name" if by == "Spark" else "redis_url"
    for url, error, said in (
        (calm.url.replace(f"service={SERVICE}", "service=other"), BackendRefused, "no primary 'other'"),
        (calm.url.replace(calm.sentinel_password, "wrong"), AuthenticationFailed, "sentinel_password"),
        (calm.url.replace(f":{calm.password}@", ":wrong@"), AuthenticationFailed, setting),
    ):
        with pytest.raises(error, match=said) as caught:
            await call(url)
        assert calm.password not in str(caught.value)
        assert calm.sentinel_password not in str(caught.value)


async def test_a_user_of_the_sentinels_needs_few_rights(calm: Trio) -> None:
    """The address is enough; what is needed beside it is needed to be quick."""
    for sentinel in calm.sentinels:
        sentinel.call("ACL", "SETUSER", "asker", "reset", "on", ">pw", *LEAST_RIGHTS)
        sentinel.call("ACL", "SETUSER", "listener", "reset", "on", ">pw", *LEAST_RIGHTS, *MORE_RIGHTS)
    for user in ("asker", "listener"):
        url = calm.url.replace("sentinel_password=", f"sentinel_username={user}&sentinel_password=")
        async with Backend.open(url.replace(calm.sentinel_password, "pw"), name="t") as backend:
            assert await port_of(backend) == calm.primary.port
            if user == "listener":
                await wait_for_async(lambda: any(map(is_listened_to, calm.sentinels)), "it listens")


def is_listened_to(sentinel: Server) -> bool:
    return any(client["user"] == "listener" and client["sub"] == "3" for client in sentinel.clients())


async def test_one_sentinel_that_answers_is_enough(calm: Trio) -> None:
    """Of three, one is not there and one does not answer."""
    async with (
        stub(lambda _: b"") as silent,
        stub(names("127.0.0.1", calm.primary.port, 1)) as answering,
    ):
        began = time.monotonic()
        async with Backend.open(url_by(calm, 1, silent, answering), name="t") as backend:
            assert await port_of(backend) == calm.primary.port
        assert time.monotonic() - began < CALL_TIMEOUT_MS / 1000
        async with Backend.open(url_by(calm, 1, silent), name="t") as backend:
            with pytest.raises(BackendUnavailable, match="None of the sentinels"):
                await backend.execute("PING")


async def test_a_sentinel_that_has_not_heard_yet_is_outvoted(calm: Trio) -> None:
    """It names a replica, and the number of what it knows is lower."""
    old = next(server for server in calm.servers if server is not calm.primary)
    async with (
        stub(names("127.0.0.1", old.port, 1)) as lagging,
        stub(names("127.0.0.1", calm.primary.port, 2)) as knowing,
    ):
        for _ in range(5):
            async with Backend.open(url_by(calm, lagging, knowing), name="t") as backend:
                assert await port_of(backend) == calm.primary.port


async def test_a_replica_that_is_named_is_not_used(calm: Trio) -> None:
    replica = next(server for server in calm.servers if server is not calm.primary)
    async with (
        stub(names("127.0.0.1", replica.port, 1)) as lagging,
        Backend.open(url_by(calm, lagging), name="t") as backend,
    ):
        with pytest.raises(BackendUnavailable, match="not the primary"):
            await backend.execute("GET", "key")


@pytest.mark.parametrize("says", [b"", b"-NOPERM no permissions to run the 'hello' command\r\n"])
async def test_a_primary_that_does_not_tell_its_role_is_an_error_of_ours(says: bytes) -> None:
    """It may end between letting somebody in and telling: an error of redis-py would end the worker."""

    def primary(words: list[bytes]) -> bytes:
        if words[0] == b"HELLO" and not says:
            raise OSError("the connection is closed")
        return says if words[0] == b"HELLO" else b"+OK\r\n"

    async with stub(primary) as server, stub(names("127.0.0.1", server, 1)) as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel}/0?service=orders"
        async with Backend.open(url, name="t") as backend:
            with pytest.raises(BackendRefused if says else BackendUnavailable, match=f":{server} "):
                await backend.execute("PING")


async def test_a_primary_on_another_machine_is_not_sent_plain_text(calm: Trio) -> None:
    async with (
        stub(names("db.example", 6379, 1)) as sentinel,
        Backend.open(url_by(calm, sentinel), name="t") as backend,
    ):
        with pytest.raises(BackendRefused, match=r"plain text to db\.example"):
            await backend.execute("PING")


async def test_what_leads_to_a_primary_that_was_cut_off_is_closed(steady: Trio) -> None:
    """Neither a call under way nor an idle connection waits for it, and none is answered by it later."""
    async with Backend.open(steady.url, name="t", call_timeout_ms=60_000) as backend:
        await asyncio.gather(*(backend.execute("INCR", "before") for _ in range(4)))
        waiting = backend.blocking()
        read = waiting.execute("XREAD", "BLOCK", 60_000, "STREAMS", "none", "$", block_ms=60_000)
        blocked = asyncio.create_task(read)
        await asyncio.sleep(1.5)  # It listens by then: LISTEN_WITHIN_S
        old = steady.primary
        steady.let_sentinels_talk(5_000)  # It is not to be told soon that it was replaced.
        old.pause()
        try:
            began = time.monotonic()
            replacing = asyncio.create_task(asyncio.to_thread(steady.replace, old))
            under_way = asyncio.ensure_future(backend.execute("INCR", "during"))
            with pytest.raises(BackendUnavailable):
                await asyncio.wait_for(under_way, PATIENCE_S)
            with pytest.raises(BackendUnavailable):
                await asyncio.wait_for(blocked, PATIENCE_S)
            took_s = time.monotonic() - began
            print(f"a call under way was told after {took_s:.2f} s")
            new = await replacing
        finally:
            old.resume()
        ports = {await port_of(backend) for _ in range(6)}
        assert ports == {new.port}
        assert old.is_primary, "it should not have noticed yet, or this shows nothing"
        await waiting.aclose()


async def test_connections_beside_others_leave_them_what_listens_to_the_sentinels(calm: Trio) -> None:
    """Who closes some of a program's connections has not ended the program."""
    async with Backend.open(calm.url, name="t") as backend:
        await backend.execute("PING")
        beside = backend.apart(1)
        assert await beside.execute("PING") == b"PONG"
        await beside.aclose()
        assert isinstance(backend.server, Node)
        assert isinstance(backend.server.target, SentinelTarget)
        listener = backend.server.target._listener
        assert listener is not None
        assert not listener.done()


async def test_a_failed_attempt_is_no_reason_to_believe_what_is_older(calm: Trio) -> None:
    """A sentinel that has not heard yet would lead back to the old primary. If all say so, it is so."""
    told, answers = [("127.0.0.1", 1, 5)], [True, False]

    def sentinel(number: int) -> Callable[[list[bytes]], bytes]:
        return lambda words: names(*told[0])(words) if answers[number] else b""

    async with (
        stub(sentinel(0)) as first,
        stub(sentinel(1)) as second,
        Backend.open(url_by(calm, first, second), name="t", call_timeout_ms=4_000) as backend,
    ):
        with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1:1 "):
            await backend.execute("PING")
        told[0] = ("127.0.0.1", calm.primary.port, 4)
        with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1:1 "):
            await backend.execute("PING")
        answers[1] = True
        assert await backend.execute("PING") == b"PONG"


async def test_an_attempt_whose_time_was_over_is_no_reason_to_believe_what_is_older_later(
    calm: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other connections are well, so nobody connects again, and nobody has failed to get in for long."""
    monkeypatch.setattr(sentinel_module, "REMEMBERED_S", 0.0)
    told, answers = [("127.0.0.1", 0, 5)], [True, True]
    lets_in = [True]

    def sentinel(number: int) -> Callable[[list[bytes]], bytes]:
        return lambda words: names(*told[0])(words) if answers[number] else b""

    def primary(words: list[bytes]) -> bytes:
        return says_primary(words) if lets_in[0] else b""

    async with stub(primary) as port, stub(sentinel(0)) as first, stub(sentinel(1)) as second:
        told[0] = ("127.0.0.1", port, 5)
        target = SentinelTarget(url_by(calm, first, second), "t")
        kept, other = target.socket(), target.socket()
        try:
            await target.connect(kept)
            lets_in[0] = False
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(target.connect(other), 0.2)
            told[0], answers[1] = ("127.0.0.1", calm.primary.port, 4), False
            await target._look()
            assert target.leads_here(kept) and kept.is_open
        finally:
            await kept.hang_up()
            await target.aclose()


async def test_a_read_does_not_wait_for_a_primary_that_hangs_before_it_says_so() -> None:
    """It has let us in, and a read that waits at the server has no other deadline for this."""
    said: list[bytes] = []

    def primary(words: list[bytes]) -> bytes:
        said.append(words[0])
        return b"" if words[0] == b"HELLO" else b"+OK\r\n"

    async with stub(primary) as server, stub(names("127.0.0.1", server, 1)) as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel}/0?service=orders"
        async with Backend.open(url, name="t") as backend:
            read = backend.blocking("k").execute("XREAD", "BLOCK", 200, "STREAMS", "k", "0", block_ms=200)
            with pytest.raises(BackendUnavailable, match="no answer within 2000 ms"):
                await asyncio.wait_for(read, PATIENCE_S)
            assert b"HELLO" in said
