"""URLs of a Cluster, what its nodes say of their slots, and where commands go."""

import asyncio
import random

import pytest

from streamworker.errors import BackendUnavailable, ConfigurationError
from streamworker.redisio.wire.client import Backend, key_of
from streamworker.redisio.wire.cluster import Cluster
from streamworker.redisio.wire.link import Endpoint
from streamworker.redisio.wire.topology import SLOTS, Topology, read_map, seeds_of, slot_of

pytestmark = pytest.mark.anyio

SECRET = "canary-Pa55word"


def test_a_url_names_some_nodes() -> None:
    seeds = seeds_of(f"rediss+cluster://me:{SECRET}@db1:7000,db2.example:7001,[::1]:7002", "t")
    assert [seed.address for seed in seeds] == ["db1:7000", "db2.example:7001", "::1:7002"]
    assert all(seed.is_encrypted for seed in seeds)
    assert {seed.login for seed in seeds} == {("me", SECRET)}


@pytest.mark.parametrize(
    "url",
    [
        f"redis+cluster://:{SECRET}@localhost:port,localhost:7001",
        f"redis+cluster://:{SECRET}/x@localhost",
        f"redis+cluster://:{SECRET}@localhost:7000,localhost:7001/3",
        f"unix+cluster://:{SECRET}@/run/redis.sock",
    ],
)
def test_a_url_that_cannot_be_read_is_not_shown(url: str) -> None:
    """A part of it may be a password; and a Cluster has one database."""
    with pytest.raises(ConfigurationError) as caught:
        seeds_of(url, "t")
    assert SECRET not in str(caught.value)


def test_all_keys_of_a_partition_have_one_slot() -> None:
    """What stands in braces counts, and nothing else."""
    assert slot_of("sw:{shop.orders.3}:events") == slot_of("sw:{shop.orders.3}:lock:price")
    assert slot_of("123456789") == 12_739  # CRC16/XMODEM, as the specification of the Cluster has it


def test_a_node_that_does_not_know_its_host_is_the_one_that_was_asked() -> None:
    """So does one that nobody has been told a name of yet count as not there."""
    reply = [
        [0, 99, [b"", 7000, b"a"], [b"db2", 7001, b"b"]],
        [100, 16383, [b"?", 7002, b"c"]],
    ]
    found = read_map(reply, Endpoint("redis://db0:1", "t"))
    assert (found.slots[0], found.slots[99], found.slots[100], found.slots[SLOTS - 1]) == (
        "db0:7000", "db0:7000", None, None,
    )  # fmt: skip
    assert found.nodes == {"db0:7000", "db2:7001"}


@pytest.mark.parametrize(
    "command, key",
    [
        (("GET", "a"), "a"),
        (("XINFO", "GROUPS", "b"), "b"),
        (("XGROUP", "CREATE", "b", "g", "0"), "b"),
        (("XREAD", "BLOCK", 5, "STREAMS", "c", "0-0"), "c"),
        (("EVALSHA", "sha", 1, "d", "x"), "d"),
        (("CLIENT", "LIST", "ID", 7), ""),
        (("SCRIPT", "EXISTS", "sha"), ""),
        (("TIME",), ""),
    ],
)
def test_a_command_goes_where_its_key_is(command: tuple[str | int, ...], key: str) -> None:
    assert key_of(command) == key


async def test_nobody_who_tells_the_slots_is_said_with_all_addresses() -> None:
    cluster = Cluster(Topology(seeds_of(f"redis+cluster://:{SECRET}@127.0.0.1:1,127.0.0.1:2", "t")), 1, 2_000)
    with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1:[12] cannot be reached") as caught:
        await Backend(cluster).execute("GET", "a")
    assert SECRET not in str(caught.value)
    await cluster.aclose()


async def test_many_failures_lead_to_one_look() -> None:
    """A thousand calls that fail at once do not ask a thousand times where their slots are."""
    topology = Topology(seeds_of("redis+cluster://127.0.0.1:1", "t"), random.Random(7))
    looks = 0

    async def ask(target: Endpoint) -> None:
        nonlocal looks
        looks += 1
        raise BackendUnavailable(f"{target.address} is not there")

    topology._ask = ask  # type: ignore[method-assign, assignment]
    for _ in range(10):
        for _ in range(100):
            topology.failed("127.0.0.1:1")
        await asyncio.sleep(0.06)
    await topology.aclose()
    assert 2 <= looks <= 5


async def test_a_node_on_another_machine_is_sent_no_password_as_plain_text() -> None:
    """The URL speaks of this machine alone: whoever wrote it has not said that it may leave it."""
    topology = Topology(seeds_of("redis+cluster://localhost:7000", "t"))
    with pytest.raises(ConfigurationError, match=r"node of the Cluster.*plain text.*rediss\+cluster"):
        topology.named("db.example", 7000, topology.seeds[0])
    assert topology.named("127.0.0.1", 7001, topology.seeds[0]) == "127.0.0.1:7001"
    encrypted = Topology(seeds_of("rediss+cluster://localhost:7000", "t"))
    assert encrypted.named("db.example", 7000, encrypted.seeds[0]) == "db.example:7000"
