"""What a full disk leaves of the append-only file, and what an operator has to do about it."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from streamworker.cli.doctor.server import persistence
from streamworker.errors import BackendUnavailable
from streamworker.redisio.wire.info import read_info
from tests.helpers import wait_for
from tests.stage.disturbed import NEEDS_ROOT, ChaosServer
from tests.stage.server import newest_aof, rewrite

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason=NEEDS_ROOT),
    pytest.mark.full("root mounts a small disk"),
]


@pytest.fixture
def server(binary: str | None, tmp_path: Path) -> Iterator[ChaosServer]:
    """A server whose data lies on a disk that can be filled."""
    with ChaosServer(tmp_path / "data", binary=binary, small_disk=True) as one:
        yield one


def fill_disk(server: ChaosServer, client: "redis.Redis") -> None:
    server.fill_disk()
    with pytest.raises(redis.RedisError, match="MISCONF"):
        write(client, 1_000)


def write(client: "redis.Redis", count: int) -> None:
    for _ in range(count):
        client.xadd("s", {"v": b"x" * 200})


def takes_writes(client: "redis.Redis") -> bool:
    """Whether there is room again, and the server has seen it."""
    with suppress(redis.RedisError):
        write(client, 1)
        return True
    return False


@pytest.mark.parametrize(
    ("was_rewritten", "is_rewritten_after"), [(False, False), (True, True), (True, False)]
)
def test_a_file_that_was_rewritten_has_a_hole_after_a_full_disk_unless_it_is_rewritten_again(
    server: ChaosServer, was_rewritten: bool, is_rewritten_after: bool
) -> None:
    """All goes on meanwhile, as docs/durability.md says; with the hole the server does not start again.

    Where that fails, a server has learned better. Without a hole all is there that was confirmed.
    """
    with server.client() as client:
        client.xadd("s", {"v": "before"})
        if was_rewritten:
            rewrite(client)
        write(client, 100)
        fill_disk(server, client)
        said = "\r\n".join(f"{name}:{value}" for name, value in client.info("persistence").items())
        check = persistence(read_info(said.encode()), None)
        assert (check.verdict, "BGREWRITEAOF" in check.remedy) == ("fail", True)
    if is_rewritten_after:
        server.free_disk()
    else:
        server.give_room()
    with server.client() as client:
        wait_for(lambda: takes_writes(client), "it takes writes again")
        write(client, 10)
        confirmed = client.xlen("s")
    if was_rewritten and not is_rewritten_after:
        assert bytes(16) in newest_aof(server.folder).read_bytes()
        server.kill()
        with pytest.raises(BackendUnavailable, match="Bad file format reading the append only file"):
            server.start()
        return
    server.kill()
    server.start()
    with server.client() as client:
        assert client.xlen("s") == confirmed
