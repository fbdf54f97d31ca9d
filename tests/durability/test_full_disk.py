"""What a full disk leaves of the append-only file, and what an operator has to do about it."""

import os
from pathlib import Path

import pytest
import redis

from streamworker.cli.doctor_server import persistence
from streamworker.redisio.info import read_info
from tests.chaos.servers import ChaosServer, rewrite

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk of its own")


def fill_disk(server: ChaosServer, client: "redis.Redis") -> None:
    """Write until the disk is full."""
    server.fill_disk()
    with pytest.raises(redis.RedisError, match="MISCONF"):
        write(client, 1_000)


def write(client: "redis.Redis", count: int) -> None:
    """Append some entries."""
    for _ in range(count):
        client.xadd("s", {"v": b"x" * 200})


def test_a_server_whose_disk_was_full_starts_again_once_its_file_was_written_anew(tmp_path: Path) -> None:
    """All that was confirmed is there, though the file had been rewritten before the disk was full.

    Without the last rewrite Valkey 9.1.2 and Redis 7.0.15 do not start: there are zeros in the file.
    """
    with ChaosServer(tmp_path / "data", small_disk=True) as server:
        with server.client() as client:
            client.xadd("s", {"v": "before"})
            rewrite(client)
            write(client, 100)
            fill_disk(server, client)
            said = "\r\n".join(f"{name}:{value}" for name, value in client.info("persistence").items())
            check = persistence(read_info(said.encode()), None)
            assert (check.verdict, "BGREWRITEAOF" in check.remedy) == ("fail", True)
        server.free_disk()
        with server.client() as client:
            write(client, 10)
            confirmed = client.xlen("s")
        server.restart()
        with server.client() as client:
            assert client.xlen("s") == confirmed
