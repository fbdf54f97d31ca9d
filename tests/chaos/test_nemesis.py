"""A fault does what it says, and leaves what it found: else a storm would be judged for its own mistakes."""

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.chaos.nemesis import LOSSLESS, LOSSY, Field, Names, Nemesis, Poisoned, Slot, WrongType
from tests.chaos.servers import FAKETIME, ChaosServer, Namespace
from tests.chaos.soak import Program
from tests.helpers import wait_for

NAMES = Names("chaos", "events", "handled", 2)
ADDS = {Poisoned.name}
"""What adds entries, which stay."""
DELETES = {"membership corrupt", "membership deleted", "control messages deleted", "consumer group destroyed"}
"""What takes away what a group makes anew."""


def sleeper() -> Program:
    """Start a process that does nothing, in the place of a worker."""
    return Program(subprocess.Popen(["sleep", "60"], start_new_session=True))


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """A server with what a group keeps in it, and two processes, one in a network of its own."""
    folder: Path = tmp_path_factory.mktemp("nemesis")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            ChaosServer(folder / "data", small_disk=True, clock=FAKETIME is not None)
        )
        network = Namespace(9)
        try:
            link = stack.enter_context(network)
        except (OSError, subprocess.CalledProcessError):
            link = None
        slots = [
            Slot("w0", sleeper, proxy=server.proxy(), link=link),
            Slot("p0", sleeper, proxy=server.proxy(), is_worker=False),
        ]
        for slot in slots:
            slot.begin()
        yield Field(server, slots, NAMES)
        for slot in slots:
            assert isinstance(slot.process, Program)
            slot.process.end()


def fill(client: "redis.Redis") -> None:
    """Keep something under each kind of key."""
    client.flushall()
    client.set(NAMES.of_group("members"), '{"generation":1}')
    client.hset(NAMES.of_group("beats"), "w0", "1")
    client.xadd(NAMES.of_group("control"), {"kind": "x"})
    for partition in range(NAMES.partitions):
        client.xadd(NAMES.events(partition), {"v": "1"})
        client.xgroup_create(NAMES.events(partition), NAMES.group, "0")
        client.hset(NAMES.of_partition(partition, "lock"), "owner", "w0")
        client.xadd(NAMES.of_partition(partition, "acked"), {"rows": "1"})


def held(client: "redis.Redis") -> dict[bytes | str, object]:
    """Return all that the server holds, as it would be moved elsewhere."""
    return {key: client.dump(key) for key in sorted(client.keys("*"))}


@pytest.mark.parametrize("kind", [*LOSSLESS, *LOSSY], ids=lambda kind: kind.name)
def test_a_fault_leaves_a_server_that_takes_writes_and_holds_what_it_held(
    field: Field, kind: type[Nemesis]
) -> None:
    """Unless it says that it may lose something; and its processes run again."""
    if why := kind.missing(field):
        pytest.skip(f"{kind.name}: {why}")
    with field.server.client() as client:
        fill(client)
        before = held(client)
    fault = kind()
    assert fault.aim(field, random.Random(3), frozenset())
    assert fault.target and fault.takes
    fault.begin()
    time.sleep(0.05)

    def is_over() -> bool:
        with contextlib.suppress(redis.RedisError):
            return fault.end()
        return False

    wait_for(is_over, f"{kind.name} is over", 20)
    with field.server.client() as client:
        if not kind.loses and kind.name not in ADDS | DELETES:
            assert held(client) == before
        assert client.set("written", "1")
        assert client.config_get("maxclients")["maxclients"] == "10000"
        assert abs(client.time()[0] - time.time()) < 5
    assert all(slot.running for slot in field.slots)


def test_what_a_group_has_put_right_meanwhile_is_left_as_it_is(field: Field) -> None:
    """Heartbeats of before the fault are not brought back over those of now."""
    beats, rng = NAMES.of_group("beats"), random.Random(1)
    with field.server.client() as client:
        fill(client)
        fault = WrongType()
        while not (fault.aim(field, rng, frozenset()) and fault.key == beats):
            fault = WrongType()
        fault.begin()
        assert client.get(beats) == b"a string"
        client.delete(beats)
        client.hset(beats, "w1", "2")
        assert fault.end()
        assert client.hgetall(beats) == {b"w1": b"2"}
        assert not client.keys("*:aside")


class Broken(ChaosServer):
    """One that fails as soon as it has started."""

    def start(self) -> None:
        """Start it, and fail."""
        super().start()
        raise RuntimeError("it failed")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_server_that_fails_leaves_no_disk_and_no_process_behind(tmp_path: Path) -> None:
    """Whatever was begun is ended, though nobody came to use it."""
    server = Broken(tmp_path / "data", small_disk=True)
    with pytest.raises(RuntimeError, match="it failed"), server:
        pass
    assert not os.path.ismount(server.folder)
    assert not server.server.running
