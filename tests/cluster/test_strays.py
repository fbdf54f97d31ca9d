"""Calls that go astray on a Cluster: what a node says of others, and what is closed under a call.

The nodes are stubs, for what real ones do too seldom to be waited for.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from streamworker.dev.cluster import EmbeddedCluster
from streamworker.errors import (
    AuthenticationFailed,
    BackendError,
    BackendRefused,
    BackendUnavailable,
    ConfigurationError,
)
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.topology import Topology, seeds_of, slot_of
from tests.cluster.stub import AWAY, HERE, StubNode, url_of
from tests.helpers import wait_for_async
from tests.stub import stub

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.mark.parametrize("host", ["", "?"])
async def test_a_node_that_leaves_its_host_out_means_its_own(host: str) -> None:
    """Both nodes are on one machine, whose name nobody has told them."""
    one, other = StubNode(), StubNode()
    async with stub(one.answer) as one.port, stub(other.answer) as other.port:
        one.moved_to = f"{host}:{other.port}"
        async with Backend.open(url_of(one.port), name="t") as backend:
            assert await backend.execute("GET", AWAY) == b"here"
    topology = Topology(seeds_of("redis+cluster://db1.example:7000", "t"))
    assert topology.named(host, 7001, topology.seeds[0]) == "db1.example:7001"


async def test_a_call_that_is_sent_to_a_stranger_is_refused_and_others_are_answered() -> None:
    """Passwords would go there as plain text. A worker goes on with what it has, and says so."""
    node = StubNode("db.example:7000")
    async with stub(node.answer) as node.port, Backend.open(url_of(node.port), name="t") as backend:
        here, away = await backend.pipeline([("GET", HERE), ("GET", AWAY)])
        assert here == b"here"
        assert isinstance(away, BackendRefused)
        assert "plain text" in str(away)
        reading = backend.blocking(AWAY)
        with pytest.raises(BackendRefused, match=r"db\.example:7000.*plain text"):
            await reading.execute("GET", AWAY, block_ms=10)
        await reading.aclose()


async def test_of_two_nodes_one_refuses_and_one_gives_no_answer() -> None:
    """What may have been done is not called refused because something else was, at another node."""
    silent, closed = StubNode(), StubNode()
    silent.hangs, closed.closed = b"GET", True
    first, second = ("b", "a") if slot_of("b") < slot_of("a") else ("a", "b")
    async with stub(silent.answer) as silent.port, stub(closed.answer) as closed.port:
        silent.beside = closed
        async with Backend.open(url_of(silent.port), name="t", call_timeout_ms=1_000) as backend:
            for keys in ((first, second), (second, first)):
                answers = await backend.pipeline([("GET", key) for key in keys])
                kinds = dict(zip(keys, map(type, answers), strict=True))
                assert kinds == {first: BackendUnavailable, second: AuthenticationFailed}
            with pytest.raises(AuthenticationFailed):
                await backend.pipeline([("GET", second), ("GET", second)])


async def test_a_node_that_does_not_tell_its_time_is_suspected() -> None:
    """Nobody else may have asked it for anything, and its place may be another's by now."""
    node = StubNode()
    async with (
        stub(node.answer) as node.port,
        Backend.open(url_of(node.port), name="t", call_timeout_ms=500) as backend,
    ):
        assert await backend.execute("GET", HERE) == b"here"
        assert node.looks == 1
        node.hangs = b"TIME"
        with pytest.raises(BackendUnavailable):
            await backend.time_ms(near=HERE)
        await wait_for_async(lambda: node.looks == 2, "somebody asked where the slots are")


@pytest.mark.parametrize("hangs", [b"CLUSTER", b"GET"])
async def test_a_call_under_way_is_told_when_its_backend_is_closed(hangs: bytes) -> None:
    """By an error: to be cancelled would end its caller, which nobody has asked to end."""
    node = StubNode()
    node.hangs = hangs
    async with stub(node.answer) as node.port:
        backend = Backend.open(url_of(node.port), name="t", call_timeout_ms=400)
        call = asyncio.create_task(_outcome(lambda: backend.execute("GET", HERE)))
        await wait_for_async(lambda: node.hung, "the call is under way")
        await backend.aclose()
        assert isinstance(await call, BackendError)


async def _outcome(call: Callable[[], Coroutine[Any, Any, Any]]) -> object:
    try:
        return await call()
    except (BackendError, asyncio.CancelledError) as error:
        return error


async def test_a_closed_backend_says_so(nodes: EmbeddedCluster) -> None:
    """As that of one server does; it opens no new connections, to nodes that it had none to either."""
    backend = Backend.open(nodes.url, name="t")
    await backend.execute("GET", HERE)
    await backend.aclose()
    keys = [f"k{n}" for n in range(9)]
    for call in (*(backend.execute("GET", key) for key in keys), backend.execute("TIME", near=HERE)):
        with pytest.raises(ConfigurationError, match="was closed"):
            await call
