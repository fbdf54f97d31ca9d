"""The connection itself: deadlines, refusals, credentials, servers that should not be used."""

import asyncio
import random
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

from streamworker.dev.server import EmbeddedServer
from streamworker.errors import AuthenticationFailed, BackendRefused, BackendUnavailable, ConfigurationError
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.group import membership
from streamworker.redisio.wire.client import Backend, retrying
from streamworker.redisio.wire.info import check_server
from streamworker.redisio.wire.node import Node
from tests.chaos.proxy import proxied
from tests.contract.support import GROUP, STREAM, Group, Raw, request, url_of_user
from tests.helpers import wait_for_async
from tests.stage.server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]

SECRET = "canary-Pa55word"


async def test_a_wrong_password_is_named_without_being_shown(redis_url: str) -> None:
    """The message says where and what to correct; no part of the error has the password."""
    async with Backend.open(url_of_user(redis_url, "", SECRET), name="t") as backend:
        with pytest.raises(AuthenticationFailed) as caught:
            await backend.execute("PING")
    assert backend.server.address in str(caught.value)
    assert "did not accept the user or password" in str(caught.value)
    assert "STREAMWORKER_REDIS_URL" in str(caught.value)
    assert SECRET not in repr(caught.value.args)
    password = redis_url.partition("://:")[2].partition("@")[0]
    async with Backend.open(redis_url.replace(password, "").replace(":@", ""), name="t") as backend:
        with pytest.raises(AuthenticationFailed):
            await backend.execute("PING")


async def test_nobody_at_the_address_is_said_at_once(tmp_path: object) -> None:
    async with Backend.open(f"redis://:{SECRET}@127.0.0.1:1/0", name="t") as backend:
        started = time.monotonic()
        with pytest.raises(BackendUnavailable) as caught:
            await backend.execute("PING")
        assert time.monotonic() - started < 5, "and not after the call's whole time"
    assert "Redis at 127.0.0.1:1 cannot be reached: " in str(caught.value)
    assert SECRET not in str(caught.value)
    async with Backend.open(f"unix://:{SECRET}@{tmp_path}/none?db=0", name="t") as backend:
        with pytest.raises(BackendUnavailable, match=r"none cannot be reached: No such file or directory\."):
            await backend.execute("PING")


@pytest.mark.parametrize(
    "policy, refused",
    [("noeviction", False), ("allkeys-lru", True), ("volatile-ttl", True), ("allkeys-random", True)],
)
async def test_a_server_that_evicts_is_refused(backend: Backend, policy: str, refused: bool) -> None:
    """It would drop streams, locks and checkpoints when memory is full."""
    info = await backend.info()
    assert info.maxmemory_policy == "noeviction"
    wrong = pytest.raises(ConfigurationError, match=f"maxmemory-policy is {policy}.*noeviction")
    with wrong if refused else nullcontext():
        check_server(replace(info, maxmemory_policy=policy))


async def test_the_server_says_what_it_is(backend: Backend, server: EmbeddedServer) -> None:
    """Valkey calls itself Redis 7.2.4 besides; its own version counts."""
    info = await backend.info()
    assert info.is_valkey == (server.version.name.lower() != "redis")
    assert info.version == f"{server.version.major}.{server.version.minor}.{server.version.patch}"
    assert len(info.run_id) == 40
    assert info.role == "master"
    assert abs(await backend.time_ms() - time.time() * 1000) < 60_000


async def test_an_idle_connection_that_was_closed_is_not_used(backend: Backend, raw: Raw) -> None:
    """The next call connects anew instead of failing, though its command may not be repeated."""
    await backend.execute("PING")
    raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await wait_for_async(lambda: _closed_by_server(backend), "the news has come here")
    assert await backend.execute("INCR", "n") == 1


async def test_a_connection_that_dies_under_a_call_leaves_the_next_one_unharmed(
    backend: Backend, raw: Raw
) -> None:
    task = asyncio.create_task(backend.execute("BLPOP", "nothing", 0))
    await wait_for_async(lambda: raw.info("clients")["blocked_clients"] == 1, "the call is under way")
    raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with pytest.raises(BackendUnavailable):
        await task
    assert await backend.execute("ECHO", "mine") == b"mine"


async def test_no_reply_is_ever_taken_for_another_calls(backend: Backend) -> None:
    """Calls are cancelled and time out at every moment, and each answer is still its own."""
    rng = random.Random(7)
    wrong = []

    async def call(n: int) -> None:
        backend.server.call_timeout_ms = rng.choice([0.05, 0.2, 1, 1_000])  # of the next call
        try:
            answer = await backend.execute("ECHO", b"%d" % n)
        except BackendUnavailable:
            return
        if answer != b"%d" % n:
            wrong.append((n, answer))

    for n in range(400):
        task = asyncio.create_task(call(n))
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        if rng.random() < 0.3:
            task.cancel()
            # A cancelled call ends as cancelled: nothing swallows it.
            with pytest.raises(asyncio.CancelledError):
                await _ended(task)
        else:
            await task
    assert wrong == []


async def _ended(task: "asyncio.Task[None]") -> None:
    try:
        await task
    finally:
        assert task.done()
    raise asyncio.CancelledError  # It had finished before the cancel came.


async def test_many_calls_share_a_few_connections(redis_url: str, raw: Raw) -> None:
    async with Backend.open(redis_url, name="few", connections=2) as backend:
        answers = await asyncio.gather(*(backend.execute("ECHO", b"%d" % n) for n in range(200)))
        assert answers == [b"%d" % n for n in range(200)]
        names = [client["name"] for client in raw.client_list()]
        assert names.count("few") == 2
    await wait_for_async(
        lambda: "few" not in [client["name"] for client in raw.client_list()], "all connections are closed"
    )


async def test_a_closed_backend_says_so(redis_url: str) -> None:
    backend = Backend.open(redis_url, name="t")
    await backend.aclose()
    with pytest.raises(ConfigurationError, match="was closed"):
        await backend.execute("PING")


async def test_a_heartbeats_connection_can_be_told_from_others(redis_url: str, raw: Raw) -> None:
    """The id is that of the connection that the next call uses, also after it was lost."""
    async with Backend.open(redis_url, name="beat") as backend:
        seen = []
        for _ in range(2):
            number, run_id = await backend.identity()
            assert number == await backend.execute("CLIENT", "ID")
            assert run_id == raw.info("server")["run_id"]
            seen.append(number)
            raw.execute_command("CLIENT", "KILL", "ID", number)
            await wait_for_async(lambda: _closed_by_server(backend), "the news has come here")
        assert seen[0] != seen[1]


async def test_a_pipeline_returns_each_refusal_in_its_place(backend: Backend, raw: Raw) -> None:
    raw.set("text", "a")
    fine, refused, unknown, last = await backend.pipeline(
        [("SET", "a", 1), ("HGET", "text", "x"), ("NOSUCHCOMMAND",), ("GET", "a")]
    )
    assert (fine, last) == (b"OK", b"1")
    assert isinstance(refused, BackendRefused)
    assert "WRONGTYPE" in str(refused)
    assert isinstance(unknown, BackendRefused)
    assert await backend.pipeline([]) == []


async def test_a_user_without_a_right_is_told_which(redis_url: str, raw: Raw) -> None:
    """NOPERM names the command; the remedy says where the rights are listed.

    A connection needs no right to have a name.
    """
    raw.execute_command("ACL", "SETUSER", "poor", "reset", "on", f">{SECRET}", "~*", "+ping")
    async with Backend.open(url_of_user(redis_url, "poor", SECRET), name="t") as backend:
        assert await backend.execute("PING") == b"PONG"
        with pytest.raises(BackendRefused, match=r"(?i)NOPERM.*'get'"):
            await backend.execute("GET", "a")
        assert await membership.connected(backend, [1]) is None
        assert (await backend.identity()) == (0, "")
    raw.execute_command("ACL", "DELUSER", "poor")


async def test_a_server_at_its_limit_of_connections_is_unavailable(
    redis_url: str, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets us in when there is room. It says why not, unless it has hung up before we had sent
    our name: then it is a lost connection like any other.
    """
    monkeypatch.setattr("streamworker.redisio.wire.attempts.FULL_PAUSE_S", (0.1, 0.2))
    raw.config_set("maxclients", 1)
    try:
        async with Backend.open(redis_url, name="t") as backend:
            with pytest.raises(BackendUnavailable, match=r"no room for another connection|Connection lost"):
                await backend.execute("PING")
            raw.config_set("maxclients", 1_000)
            assert await backend.execute("PING") == b"PONG"
    finally:
        raw.config_set("maxclients", 1_000)


async def test_a_server_busy_with_a_script_is_unavailable(redis_url: str, raw: Raw) -> None:
    """BUSY passes by itself; what was asked was not done."""
    raw.config_set("busy-reply-threshold", 20)
    async with (
        Backend.open(redis_url, name="t", call_timeout_ms=2_000) as backend,
        Backend.open(redis_url, name="spins", call_timeout_ms=20_000) as other,
    ):
        await backend.execute("PING")
        spin = asyncio.create_task(other.execute("EVAL", "while true do end", 0))

        async def busy() -> bool:
            try:
                await backend.execute("PING")
            except BackendUnavailable as error:
                return "busy with a script" in str(error)
            return False

        try:
            await wait_for_async(busy, "the server says that it is busy")
        finally:
            raw.execute_command("SCRIPT", "KILL")
        with pytest.raises(BackendRefused):
            await spin
    raw.config_set("busy-reply-threshold", 5_000)


async def test_a_server_that_hangs_ends_a_call_at_its_deadline(own_server: Server) -> None:
    """Not after a minute of hidden retries; and it answers again when it runs again."""
    async with (
        Backend.open(own_server.url, name="patient") as patient,
        Backend.open(own_server.url, name="t", call_timeout_ms=300) as backend,
    ):
        group = Group(patient, STREAM, GROUP)
        sent = request(await group.own(), await group.send(1), rows=1)
        await retrying(lambda: backend.execute("PING"), rng=random.Random(1))
        with own_server.paused():
            started = time.monotonic()
            with pytest.raises(BackendUnavailable, match="gave no answer within 300 ms"):
                await backend.execute("PING")
            reply = await Group(backend, STREAM, GROUP).commit(sent)
            assert time.monotonic() - started < 20
            assert reply.code is CommitCode.UNKNOWN
            connection = backend.blocking()
            with pytest.raises(BackendUnavailable):
                await connection.execute("PING", block_ms=10)
        # The commit may have reached it: either way it is there once.
        assert (await group.commit(sent)).code in {CommitCode.OK, CommitCode.DUP}
        assert await patient.execute("XLEN", GROUP.acked(0)) == 1
        await connection.aclose()


@pytest.mark.alone("about seconds")
async def test_a_read_on_a_slow_network_has_time_to_connect_and_to_answer(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round trip takes longer than a read may take beyond its wait: at 1 s nothing was read."""
    monkeypatch.setattr("streamworker.redisio.wire.client.BLOCK_MARGIN_MS", 500)
    read = ("XREAD", "BLOCK", 20, "STREAMS", "none", "$")
    async with proxied(own_server.url) as proxy, Backend.open(proxy.url, name="slow") as backend:
        connection = backend.blocking()
        assert await connection.execute(*read, block_ms=20) is None
        proxy.delay_ms = 500
        with pytest.raises(BackendUnavailable, match="gave no answer"):
            await connection.execute(*read, block_ms=20)
        # It has learnt how long a round trip takes by connecting.
        assert [await connection.execute(*read, block_ms=20) for _ in range(2)] == [None] * 2
        await connection.aclose()


async def test_a_call_is_made_again_until_there_is_an_answer() -> None:
    """Only for want of an answer, and only so often; a refusal is final."""
    calls = 0

    async def flaky(failures: int, error: Exception) -> int:
        nonlocal calls
        calls += 1
        if calls <= failures:
            raise error
        return calls

    gone, no = BackendUnavailable("gone"), BackendRefused("no")
    assert await retrying(lambda: flaky(2, gone), rng=random.Random(1), pause_max_ms=1) == 3
    calls = 0
    with pytest.raises(BackendUnavailable):
        await retrying(lambda: flaky(9, gone), rng=random.Random(1), tries=3, pause_max_ms=1)
    assert calls == 3
    calls = 0
    with pytest.raises(BackendRefused):
        await retrying(lambda: flaky(9, no), rng=random.Random(1), pause_max_ms=1)
    assert calls == 1


def _closed_by_server(backend: Backend) -> bool:
    server = backend.server
    assert isinstance(server, Node)
    (link,) = server._idle
    reader = link._socket._connection._reader
    return reader is not None and reader.at_eof()


async def test_connections_that_a_rush_needed_are_closed_when_it_is_over(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's start uses all that it may have; at rest it keeps what it needs."""
    monkeypatch.setattr("streamworker.redisio.wire.node.SURPLUS_S", 0.5)

    async def are_ours(count: int) -> bool:
        listed: bytes = await backend.execute("CLIENT", "LIST")
        return listed.count(b"name=contract ") == count

    await asyncio.gather(*(backend.execute("PING") for _ in range(50)))
    assert await are_ours(8)
    await wait_for_async(lambda: are_ours(1), "the others are closed")
