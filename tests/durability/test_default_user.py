"""A server whose user `default` has no rights, and the append-only file that it loads as this user."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis

from streamworker.cli.doctor.server import redis_checks
from streamworker.dev.server import find_server
from streamworker.redisio.wire.client import Backend
from tests.helpers import LoggedProcess, wait_for

pytestmark = pytest.mark.full("starts each server twice")
OPTIONS = ["--port", "0", "--unixsocket", "s", "--appendonly", "yes", "--aclfile", "users.acl"]
SCRIPT = "return redis.call('xadd', 'from-a-script', '*', 'f', 'v') and redis.call('hset', 'lock', 'at', 1)"


@contextmanager
def serving(binary: str | None, folder: Path) -> Iterator["redis.Redis"]:
    """A server with the data and the users of a folder, until it is killed."""
    folder.mkdir(exist_ok=True)
    command = [str(find_server(binary)), *OPTIONS]
    process = LoggedProcess(command, cwd=folder, log_path=folder / "log", environ={})
    try:
        with redis.Redis(unix_socket_path=str(folder / "s"), username="admin", password="secret") as client:

            def answers() -> bool:
                with suppress(redis.RedisError):
                    return bool(client.ping())
                return False

            wait_for(answers, "the server answers")
            yield client
    finally:
        process.kill()


def said_by_doctor(folder: Path) -> str:
    async def check() -> str:
        async with Backend.open(f"unix://admin:secret@{folder}/s", name="doctor") as backend:
            checks = await redis_checks(backend, "shop")
        return next(each.verdict for each in checks if each.name == "persistence")

    return asyncio.run(check())


@pytest.mark.parametrize(("rights", "verdict"), [("", "fail"), ("~* +@all", "ok")])
def test_a_server_that_nobody_may_write_to_as_default_may_forget_what_scripts_wrote(
    binary: str | None, tmp_path: Path, rights: str, verdict: str
) -> None:
    """`doctor` warns of both servers. Where Redis 7.0 does not forget, it has learned better."""
    (tmp_path / "users.acl").write_text(f"user default off {rights}\nuser admin on >secret ~* &* +@all\n")
    with serving(binary, tmp_path) as client:
        client.eval(SCRIPT, 2, "from-a-script", "lock")
        assert said_by_doctor(tmp_path) == verdict
    with serving(binary, tmp_path) as client:
        forgets = binary is not None and not rights
        assert client.exists("from-a-script", "lock") == (0 if forgets else 2)
