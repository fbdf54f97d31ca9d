"""Attempts to connect: few while a server is away, all at once when it is back."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis

from streamworker.dev.server import EmbeddedServer
from streamworker.errors import AuthenticationFailed, BackendUnavailable
from streamworker.redisio.wire import attempts
from streamworker.redisio.wire.attempts import ConnectAttempts, gate_of
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import has_no_room
from streamworker.redisio.wire.link import Endpoint, Link
from streamworker.settings import Settings
from tests.chaos.proxy import proxied
from tests.helpers import PATIENCE_S
from tests.stub import stub

pytestmark = [pytest.mark.anyio, pytest.mark.alone("how seldom is knocked, and how soon who waits is let in")]

GONE = "Redis at db1:6379 cannot be reached: Connection refused."


@asynccontextmanager
async def knocked_at(says: bytes = b"", *, hangs: bool = False) -> AsyncIterator[tuple[str, list[float]]]:
    """Give the URL of somebody who hangs up on everybody, or hangs, and the times of the knocks."""
    knocks: list[float] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        knocks.append(time.monotonic())
        writer.write(says)
        if hangs:
            await reader.read()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}/0", knocks
    finally:
        listener.close()


async def knock_for(seconds: float, backends: list[Backend]) -> list[str]:
    """Have each call again and again, as a worker does that nobody answers; return what was said."""
    errors: list[str] = []

    async def knock(backend: Backend) -> None:
        while True:
            try:
                await backend.execute("PING")
            except BackendUnavailable as error:
                errors.append(str(error))
            await asyncio.sleep(0.02)

    callers = [asyncio.create_task(knock(backend)) for backend in backends]
    await asyncio.sleep(seconds)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return errors


async def test_callers_with_little_time_knock_as_seldom_at_a_server_that_hangs() -> None:
    """It takes their connections and says nothing, so that each of them gives up before the attempt fails."""
    began = time.monotonic()
    async with (
        knocked_at(hangs=True) as (url, knocks),
        Backend.open(url, name="a", call_timeout_ms=600) as backend,
    ):
        with pytest.raises(BackendUnavailable, match="no answer within 600 ms"):
            await backend.execute("PING")
        await knock_for(1.5, [backend] * 3)
        # Four in the 2.1 s that this takes at least.
        most = 1 + (time.monotonic() - began) // (attempts.HUNG_S + attempts.FIRST_PAUSE_S[0])
        assert 2 <= len(knocks) <= most


@pytest.mark.parametrize(
    "says, first_pause_s, pause_s",
    [
        (b"", attempts.FIRST_PAUSE_S[0], attempts.PAUSE_S[0]),
        (b"-ERR max number of clients reached\r\n", attempts.FULL_PAUSE_S[0], attempts.FULL_PAUSE_S[0]),
    ],
    ids=["away", "full"],
)
async def test_all_of_a_process_knock_as_seldom_as_one(
    says: bytes, first_pause_s: float, pause_s: float
) -> None:
    """Twelve callers of two backends for a moment: few attempts, fewer where there is no room."""
    began = time.monotonic()
    async with (
        knocked_at(says) as (url, knocks),
        Backend.open(url, name="a", call_timeout_ms=400) as one,
        Backend.open(url, name="b", call_timeout_ms=400, connections=1) as other,
    ):
        with pytest.raises(BackendUnavailable) as first:
            await one.execute("PING")
        errors = await knock_for(0.7, [one, other] * 6)
        # Three and one in the 0.7 s that this takes at least.
        after_first_pause_s = time.monotonic() - began - first_pause_s
        most = 1 if after_first_pause_s < 0 else 2 + after_first_pause_s // pause_s
        assert 1 <= len(knocks) <= most
        assert has_no_room(first.value) == bool(says)
        # Callers were told, though few have asked; and by name.
        assert len(errors) > 2 * len(knocks)
        assert all(
            url.rpartition("@")[2].removeprefix("redis://").removesuffix("/0") in said for said in errors
        )


async def test_who_waits_is_let_in_as_soon_as_one_was(own_server: EmbeddedServer) -> None:
    """Nobody sleeps through the return of a server: calls that came while it was away are answered."""
    async with Backend.open(own_server.url, name="t") as backend:
        await asyncio.gather(*(backend.execute("PING") for _ in range(6)))
        own_server.kill()
        assert await knock_for(0.5, [backend] * 6)
        waiting = [asyncio.create_task(backend.execute("PING")) for _ in range(6)]
        await asyncio.sleep(0)
        await asyncio.to_thread(own_server.start)
        there = time.monotonic()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        again = await asyncio.gather(*(backend.execute("PING") for _ in range(6)))
        assert time.monotonic() - there < 1.0
        assert again == [b"PONG"] * 6
        assert set(map(type, answers)) in ({bytes}, {BackendUnavailable}), "one was told another thing"


async def test_after_a_lost_connection_one_attempt_shows_whether_others_make_sense() -> None:
    """All connections of a worker are lost at once where its server goes away."""
    made = 0

    async def refused() -> None:
        nonlocal made
        made += 1
        await asyncio.sleep(0.02)
        raise BackendUnavailable(GONE, remedy="Is it running?")

    gate = ConnectAttempts(random.Random(1))
    gate.doubt()
    found = await asyncio.gather(
        *(gate.through(refused, waits=waits) for waits in (True, False, True)), return_exceptions=True
    )
    assert made == gate.attempts == 1
    assert [str(error) for error in found] == [f"{GONE} Is it running?"] * 3
    assert len(set(map(id, found))) == 3, "an error that two raise has the traceback of both"


async def test_who_does_not_wait_knocks_too_when_it_is_time() -> None:
    """On a Cluster nobody waits for one node: if none of them knocked, none would learn that it is back."""

    async def refused() -> None:
        raise BackendUnavailable(GONE)

    gate = ConnectAttempts()
    with pytest.raises(BackendUnavailable):
        await gate.through(refused, waits=False)
    with pytest.raises(BackendUnavailable):
        await gate.through(_succeed, waits=False)
    assert gate.attempts == 1
    await asyncio.sleep(attempts.FIRST_PAUSE_S[1])
    await gate.through(_succeed, waits=False)
    assert gate.attempts == 2 and gate.error is None


async def test_a_call_that_was_sent_is_never_told_why_others_could_not_connect() -> None:
    """It may have been done, and whoever reads its error must know that."""
    sent = asyncio.Event()

    def answer(words: list[bytes]) -> bytes:
        if words[0] != b"XADD":
            return b"+OK\r\n"
        sent.set()
        return b""

    async with stub(answer) as port:
        backend = Backend.open(f"redis://127.0.0.1:{port}/0", name="t", call_timeout_ms=1_000)
        adds = asyncio.create_task(backend.execute("XADD", "s", "*", "a", "b"))
        await sent.wait()
    async with backend:
        with pytest.raises(BackendUnavailable, match="Connection refused"):
            await backend.execute("PING")
        with pytest.raises(BackendUnavailable, match="may or may not have done"):
            await adds


async def test_an_attempt_that_was_given_up_early_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller's time was over, which says nothing about the server."""
    # Whoever had to wait for a turn or a pause would wait for longer than this test does.
    monkeypatch.setattr(attempts, "TURN_S", 600)
    monkeypatch.setattr(attempts, "FIRST_PAUSE_S", (600, 600))
    gate = ConnectAttempts()
    gate.doubt()
    slow = asyncio.create_task(gate.through(asyncio.Event().wait, waits=True))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    waiting = asyncio.create_task(gate.through(_succeed, waits=True))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    slow.cancel()
    await asyncio.wait_for(waiting, PATIENCE_S)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_loop_that_is_blocked_holds_no_other_thread_up(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """A handler may compute for a minute while its connection is made: heartbeats need theirs meanwhile,
    well before their worker is taken for dead.
    """
    monkeypatch.setattr(attempts, "TURN_S", 600)
    gate = ConnectAttempts()

    async def refuse() -> None:
        raise BackendUnavailable(GONE)

    async def come_in() -> None:
        while True:  # Who does not wait is told the last error, and comes again.
            with contextlib.suppress(BackendUnavailable):
                return await gate.through(_succeed, waits=waits)
            await asyncio.sleep(0.05)

    with pytest.raises(BackendUnavailable):
        await gate.through(refuse, waits=waits)
    began, done = threading.Event(), threading.Event()

    async def block() -> None:
        began.set()
        done.wait(60)

    blocked = threading.Thread(target=lambda: asyncio.run(gate.through(block, waits=True)))
    blocked.start()
    try:
        await asyncio.to_thread(began.wait)
        await asyncio.wait_for(come_in(), Settings().dead_after_ms / 1000)
        assert not done.is_set()
    finally:
        done.set()
        blocked.join()


async def test_a_loop_that_runs_keeps_its_turn_for_as_long_as_its_attempt_takes() -> None:
    """Connecting may take a second, and each more attempt would be one too many at a server that hangs."""
    gate, ends = ConnectAttempts(), threading.Event()
    gate.doubt()
    began = threading.Event()

    async def take_long() -> None:
        began.set()
        while not ends.is_set():
            await asyncio.sleep(0.01)

    busy = threading.Thread(target=lambda: asyncio.run(gate.through(take_long, waits=True)))
    busy.start()
    try:
        await asyncio.to_thread(began.wait)
        waiting = asyncio.create_task(gate.through(_succeed, waits=True))
        await asyncio.sleep(4 * attempts.BLOCKED_S)
        assert gate.attempts == 1
        ends.set()
        await waiting
    finally:
        ends.set()
        busy.join()


async def test_an_attempt_that_lost_its_turn_says_nothing_of_a_server_that_let_another_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It began before that, and fails after it: nobody has to wait for it."""
    monkeypatch.setattr(attempts, "TURN_S", 0.05)
    gate, ends = ConnectAttempts(), asyncio.Event()
    gate.doubt()

    async def late() -> None:
        await ends.wait()
        raise BackendUnavailable(GONE)

    first = asyncio.create_task(gate.through(late, waits=True))
    await asyncio.sleep(0)
    await asyncio.wait_for(gate.through(_succeed, waits=True), 5)
    ends.set()
    with pytest.raises(BackendUnavailable, match=GONE):
        await first
    assert gate.error is None
    await gate.through(_succeed, waits=False)
    assert gate.attempts == 3


async def test_news_of_one_thread_reach_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats have a thread of their own, and share the gate."""
    monkeypatch.setattr(attempts, "TURN_S", 600)  # It hears the news, or waits for longer than this test.
    gate = ConnectAttempts()
    gate.doubt()
    free = asyncio.Event()
    attempt = asyncio.create_task(gate.through(free.wait, waits=True))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    other = threading.Thread(target=lambda: asyncio.run(gate.through(_succeed, waits=True)))
    other.start()
    await asyncio.sleep(0.05)
    assert gate.attempts == 1
    free.set()
    await attempt
    await asyncio.to_thread(other.join, PATIENCE_S)
    assert gate.attempts == 2


async def _succeed() -> None:
    return


async def test_who_is_not_let_in_closes_nobodys_way(redis_url: str) -> None:
    """A refusal is an answer; and one user's trouble is not another's."""
    wrong = Endpoint(f"unix://:wrong@{Endpoint(redis_url, 't').address}", "t")
    for _ in range(5):
        with pytest.raises(AuthenticationFailed):
            await Link(wrong).ready()
    assert wrong.unreachable is None
    assert gate_of(("h:1", False, 1)) is not gate_of(("h:1", False, 2))
    same, alike, other = (Endpoint(f"redis://:{word}@h:1", "t") for word in ("a", "a", "b"))
    assert same._gate is alike._gate
    assert same._gate is not other._gate
    assert same.at("k", 2)._gate is not same._gate


async def test_a_server_is_greeted_once_and_in_one_round_trip(own_server: EmbeddedServer) -> None:
    """On a slow network each one more is a second; redis-py takes three, and greets twice by a socket."""
    with redis.Redis.from_url(own_server.url) as raw:
        before = raw.info("commandstats").get("cmdstat_client|setname", {"calls": 0})["calls"]
        link = Link(Endpoint(own_server.url, "greeted"))
        await link.ready()
        after = raw.info("commandstats")["cmdstat_client|setname"]["calls"]
        assert after - before == 1
        assert any(client["name"] == "greeted" for client in raw.client_list())
        await link.close()
    async with proxied(own_server.url) as proxy:
        proxy.delay_ms = 500
        link = Link(Endpoint(proxy.url.removesuffix("0") + "3", "t"))
        began = time.monotonic()
        await link.ready()
        assert time.monotonic() - began < 1.9, "each round trip takes 1 s"
        proxy.delay_ms = 0
        (info,) = await link.roundtrip(b"*2\r\n$6\r\nCLIENT\r\n$4\r\nINFO\r\n", 1)
        assert b" db=3 " in info
        await link.close()
