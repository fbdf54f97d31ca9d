"""What a server leaves of a script whose last writes did not reach its append-only file."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamworker.dev.server import EmbeddedServer
from tests.chaos.servers import rewrite
from tests.conftest import NO_REDIS_SERVER, REDIS_SERVER
from tests.durability.pair import cut, newest_aof, raw

SCRIPT = "for i = 1, 3 do redis.call('SET', KEYS[i], ARGV[1]) end"
END = len(b"*1\r\n$4\r\nEXEC\r\n")


@pytest.fixture(params=["valkey", "redis7"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedServer]:
    is_redis = request.param == "redis7"
    if is_redis and REDIS_SERVER is None:
        pytest.fail(NO_REDIS_SERVER)
    with EmbeddedServer(tmp_path / "data", REDIS_SERVER if is_redis else None, port=0) as one:
        yield one


def write(server: EmbeddedServer, *keys: str) -> None:
    with raw(server) as client:
        client.eval(SCRIPT, 3, *keys, "x")


def keys_of(server: EmbeddedServer) -> list[bytes]:
    with raw(server) as client:
        found: list[Any] = client.keys("*")
    return sorted(found)


def file_of(server: EmbeddedServer) -> Path:
    assert server.data_dir is not None
    return newest_aof(server.data_dir)


def lose_tail(server: EmbeddedServer, count: int) -> None:
    server.kill()
    os.truncate(file_of(server), file_of(server).stat().st_size - count)
    server.start()


@pytest.mark.full("starts a server again and again")
@pytest.mark.parametrize("remedy", ["cut", "rewrite"])
def test_nothing_of_a_script_that_is_cut_off_comes_back(server: EmbeddedServer, remedy: str) -> None:
    """Not at the first start, and not at the second, wherever in the script its file ends."""
    for lost in (1, END, END + 1, END + 40, END + 80):
        before = keys_of(server)
        write(server, *(f"lost {lost} {n}" for n in range(3)))
        if remedy == "cut":
            server.kill()
            cut(file_of(server), lost)
            server.start()
        else:
            lose_tail(server, lost)
            with raw(server) as client:
                rewrite(client)
        assert keys_of(server) == before
        write(server, *(f"kept {lost} {n}" for n in range(3)))
        kept = keys_of(server)
        server.kill()
        server.start()
        assert keys_of(server) == kept
