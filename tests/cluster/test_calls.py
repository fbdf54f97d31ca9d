"""Calls on a real Cluster: each finds its node, also where slots move and nodes die."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from streamworker.core.data.entries import ZERO
from streamworker.dev.server import EmbeddedServer
from streamworker.errors import BackendError, BackendRefused, BackendUnavailable, ConfigurationError
from streamworker.redisio.admin.rights import acl_rules
from streamworker.redisio.data import streams
from streamworker.redisio.group import membership
from streamworker.redisio.scripts import COUNT, RELEASE
from streamworker.redisio.wire.client import Backend, retrying
from streamworker.redisio.wire.info import check_server
from tests.conftest import NO_REDIS_SERVER, REDIS_SERVER
from tests.contract.support import GROUP, STREAM, Group, request
from tests.helpers import wait_for_async
from tests.raw import RawCluster
from tests.stage.cluster import Cluster
from tests.stage.server import cut_off

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.full("a Cluster of its own that loses nodes"),
]


@pytest.fixture
async def backend(redis_url: str) -> AsyncIterator[Backend]:
    async with Backend.open(redis_url, name="calls") as opened:
        yield opened


async def test_any_node_that_is_there_tells_where_the_others_are(nodes: Cluster) -> None:
    host = f"redis+cluster://:{nodes.password}@127.0.0.1"
    async with Backend.open(f"{host}:1,127.0.0.1:{nodes.nodes[-1].port}", name="t") as backend:
        for n in range(50):
            await backend.execute("SET", f"k{n}", n)
        assert await backend.pipeline([("GET", f"k{n}") for n in range(50)]) == [b"%d" % n for n in range(50)]
        assert len(await backend.primaries()) == 3


async def test_answers_come_in_the_order_of_the_calls(backend: Backend, raw: RawCluster) -> None:
    """Some at once go to three nodes at the same time; a refusal stands in its place."""
    raw.set("text", "a")
    keys = [(f"{{s{n}}}:events", f"{{s{n}}}:counts") for n in range(9)]
    commands = [("XADD", keys[n % 9][0], f"{n + 1}-0", "v", "x") for n in range(90)]
    assert await backend.pipeline(commands) == [b"%d-0" % (n + 1) for n in range(90)]
    named = {"after": "0-0", "since": "0-0", "most": 100}
    calls = [COUNT.call(events=events, counts=counts, **named) for events, counts in keys]
    counted = await backend.run_many(COUNT, calls)
    assert [reply[1] for reply in counted] == [10] * 9
    first, refused, last = await backend.pipeline(
        [("GET", "text"), ("HGET", "text", "x"), ("XLEN", keys[8][0])]
    )
    assert (first, last) == (b"a", 10)
    assert isinstance(refused, BackendRefused)


async def test_a_command_without_a_key_goes_with_its_neighbours(backend: Backend) -> None:
    """The clock is that of the node that the group's keys are on: times of one group are compared."""
    before = await _commands_at(backend, GROUP.members)
    await membership.read_members(backend, GROUP)
    await backend.time_ms(near=GROUP.members)
    assert await _commands_at(backend, GROUP.members) == before + 2


async def _commands_at(backend: Backend, key: str) -> int:
    text = (await backend.execute("INFO", "commandstats", near=key)).decode()
    line = next((line for line in text.splitlines() if line.startswith("cmdstat_time:")), "calls=0,")
    return int(line.partition("calls=")[2].partition(",")[0])


async def test_a_heartbeat_is_found_at_the_node_of_its_group(backend: Backend) -> None:
    others = [
        key
        for key in (f"k{n}" for n in range(50))
        if await backend.server.address_of(key) != await backend.server.address_of(GROUP.members)
    ]
    number, run_id = await backend.identity(GROUP.members)
    assert run_id == (await backend.info(near=GROUP.members)).run_id
    assert run_id != (await backend.identity(others[0]))[1]
    assert await membership.connected(backend, [number], GROUP.members) == frozenset({number})


async def test_a_plain_url_of_a_node_is_refused_with_the_url_to_use(nodes: Cluster) -> None:
    """A node has a third of the keys: a worker says so at its start, and a call where it is sent on."""
    async with Backend.open(nodes.nodes[0].url, name="t") as backend:
        with pytest.raises(ConfigurationError, match=r"node of a Redis Cluster.*redis\+cluster://"):
            check_server(await backend.info())
        answers = await backend.pipeline([("GET", f"k{n}") for n in range(20)])
        refused = next(answer for answer in answers if isinstance(answer, BackendError))
        assert "redis+cluster://user:password@host1:port1,host2:port2" in str(refused)


async def test_a_cluster_url_of_one_server_is_refused_with_the_url_to_use() -> None:
    with EmbeddedServer(port=0) as server:
        async with Backend.open(server.url.replace("redis:", "redis+cluster:"), name="t") as backend:
            with pytest.raises(ConfigurationError, match=r"is no Cluster.*begin the URL with redis://"):
                await backend.execute("GET", "a")


async def test_redis_7_is_spoken_to_in_the_same_way() -> None:
    """A slot moves from one of its nodes to another between two calls, and while a call waits."""
    if REDIS_SERVER is None:
        pytest.skip(NO_REDIS_SERVER)
    with Cluster(replicas=0, binary=REDIS_SERVER) as nodes:
        async with Backend.open(nodes.url, name="t") as backend:
            group = Group(backend, STREAM, GROUP)
            entries = await group.send(3)
            lock = await group.own()
            source = nodes.primary_of(GROUP.events(0))
            target = next(node for node in nodes.nodes if node is not source)
            connection = backend.blocking(GROUP.events(0))
            task = asyncio.create_task(streams.read(connection, STREAM, {0: entries[-1].id}, 10, 20_000))
            await wait_for_async(lambda: connection._under_way, "the read was sent")
            nodes.move_slot(GROUP.events(0), target)
            with pytest.raises(BackendUnavailable):
                await task
            assert (await group.commit(request(lock, entries, rows=3))).code.value == "OK"
            assert await streams.read(connection, STREAM, {0: ZERO}, 10, 1_000) == {0: entries}
            await connection.aclose()


async def test_a_worker_needs_no_more_rights_than_are_printed(nodes: Cluster, raw: RawCluster) -> None:
    """Its user exists at every node, replicas too; it may ask where the slots are, and follow them."""
    rules = acl_rules("shop", "worker")
    raw.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *rules)
    try:
        url = nodes.url.replace(f":{nodes.password}@", "worker:secret@")
        async with Backend.open(url, name="t") as backend:
            group = Group(backend, STREAM, GROUP)
            entries = await group.send(3)
            lock = await group.own()
            assert (await group.commit(request(lock, entries, rows=3, trim=True))).code.value == "OK"
            nodes.move_slot(GROUP.events(0), nodes.another_primary(nodes.primary_of(GROUP.events(0))))
            assert await backend.execute("XLEN", GROUP.acked(0)) == 1
            for key in ("a", "b", "c"):
                with pytest.raises(BackendRefused, match="NOPERM"):
                    await backend.execute("SET", key, 1)
    finally:
        raw.execute_command("ACL", "DELUSER", "worker")


# -- slots that move ----------------------------------------------------------------------------


async def test_a_slot_that_is_moving_is_followed(nodes: Cluster, backend: Backend) -> None:
    """ASK: a key that has gone already is asked for at its new node, and a new one made there."""
    key, gone, new = "{moving}here", "{moving}gone", "{moving}new"
    for name in (key, gone):
        await backend.execute("SET", name, name)
    source = nodes.primary_of(key)
    target = nodes.another_primary(source)
    nodes.begin_move(key, target)
    nodes.move_keys(source, target, gone)
    commands = [
        ("SET", new, "n"),
        ("GET", key),
        ("GET", gone),
        ("XADD", "{moving}:events", "1-0", "v", "x"),
        ("GET", new),
    ]
    answers = await backend.pipeline(commands)
    assert answers == [b"OK", key.encode(), gone.encode(), b"1-0", b"n"]
    call = RELEASE.call(lock="{moving}:lock", owner="w1", epoch=1)
    assert (await backend.run(RELEASE, call))[0] == b"NOTOWNER"
    with pytest.raises(BackendUnavailable, match="moving its slots"):
        await backend.execute("EXISTS", key, gone)
    nodes.finish_move(key, source, target)
    assert await backend.execute("EXISTS", key, gone) == 2


async def test_a_read_that_waits_is_sent_on_with_its_slot(nodes: Cluster, backend: Backend) -> None:
    """The server ends it with MOVED; the next one waits at the right node."""
    group = Group(backend, STREAM, GROUP)
    (entry,) = await group.send(1)
    source = nodes.primary_of(GROUP.events(0))
    target = nodes.another_primary(source)
    connection = backend.blocking(GROUP.events(0))
    task = asyncio.create_task(streams.read(connection, STREAM, {0: entry.id}, 10, 20_000))
    await wait_for_async(lambda: connection._under_way, "the read was sent")
    nodes.move_slot(GROUP.events(0), target)
    with pytest.raises(BackendUnavailable):
        await task
    assert await streams.read(connection, STREAM, {0: ZERO}, 10, 1_000) == {0: [entry]}
    assert await backend.server.address_of(GROUP.events(0)) == f"127.0.0.1:{target.port}"
    await connection.aclose()


# -- nodes that die -----------------------------------------------------------------------------


async def test_a_node_that_died_is_replaced_by_its_replica(nodes: Cluster, backend: Backend) -> None:
    """Calls about other nodes go on meanwhile; those about this one are answered once it is replaced."""
    keys = [f"k{n}" for n in range(30)]
    await backend.pipeline([("SET", key, key) for key in keys])
    victim = nodes.primary_of(keys[0])
    lost = [key for key in keys if await backend.server.address_of(key) == f"127.0.0.1:{victim.port}"]
    nodes.wait_until_whole()
    replica = nodes.replica_of(victim)

    async def get() -> bytes:
        value: bytes = await backend.execute("GET", keys[0])
        return value

    with nodes.quick_to_replace():
        victim.kill()
        answers = await backend.pipeline([("GET", key) for key in keys])
        for key, answer in zip(keys, answers, strict=True):
            assert isinstance(answer, BackendUnavailable) if key in lost else answer == key.encode()
        assert await retrying(get, rng=random.Random(1), tries=300, pause_max_ms=200) == keys[0].encode()
    assert replica.is_primary


async def test_what_a_failover_lost_does_not_come_back(nodes: Cluster, backend: Backend) -> None:
    """A replica that was cut off takes over: it goes on from what it had, by its own numbers."""
    group = Group(backend, STREAM, GROUP)
    kept = await group.send(2)
    primary = nodes.primary_of(GROUP.events(0))
    replica = nodes.replica_of(primary)
    nodes.wait_until_whole()
    with primary.client() as client:
        client.wait(1, 2_000)
    with cut_off(primary, replica):
        lost = await group.send(3)
        nodes.fail_over(primary)

    async def ids() -> list[str]:
        return [
            str(entry.id) for entry in await streams.range_entries(backend, GROUP.events(0), ZERO, None, 99)
        ]

    there = await retrying(ids, rng=random.Random(1), tries=300, pause_max_ms=200)
    assert there == [str(entry.id) for entry in kept]
    assert lost[0].id > kept[-1].id
