"""The program of docs/outbox.md moves rows of a real PostgreSQL, each once, though it is killed."""

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import psycopg
import pytest

from tests.helpers import wait_for
from tests.raw import opened

PAGE = (Path(__file__).parent.parent / "docs" / "outbox.md").read_text("utf-8")
BLOCKS = re.findall(r"```(?:python|sql)\n(.*?)```", PAGE, re.DOTALL)
CREATE, INSERT, SHOP, PROGRAM = BLOCKS
INITDB = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), shutil.which("initdb"))
ROWS = 400


@pytest.fixture
def database() -> Iterator[str]:
    """A PostgreSQL of this test, on a socket. Only this user may open the folders of pytest."""
    if INITDB is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    with TemporaryDirectory(prefix="sw-") as folder:
        if user:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)

        def run(tool: str, *arguments: str) -> None:
            command = [str(Path(INITDB).with_name(tool)), "-D", f"{folder}/data", *arguments]
            subprocess.run(command, user=user, cwd=folder, check=True, capture_output=True, timeout=60)

        run("initdb", "-A", "trust", "-U", "shop", "--no-sync")
        run(
            "pg_ctl",
            "-w",
            "-l",
            f"{folder}/log",
            "-o",
            f"-k {folder} -c listen_addresses= -c fsync=off",
            "start",
        )
        yield f"host={folder} user=shop dbname=postgres"
        run("pg_ctl", "-m", "immediate", "stop")


@pytest.mark.full("starts PostgreSQL, and a program again and again")
def test_each_row_is_sent_once_and_in_order_though_the_program_is_killed(
    database: str, redis_url: str, tmp_path: Path
) -> None:
    """Two programs run, one of which moves; whichever moves is killed again and again."""
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    (tmp_path / "outbox.py").write_text(PROGRAM, "utf-8")
    environment = os.environ | {"STREAMWORKER_REDIS_URL": redis_url}

    def started() -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "outbox.py", database], cwd=tmp_path, env=environment)

    def sent() -> list[float]:
        with opened(redis_url) as client:
            entries = [entry for p in range(4) for entry in client.xrange(f"sw:{{shop.orders.{p}}}:events")]
        return [msgspec.json.decode(fields[b"v"])["amount"] for _, fields in entries]

    programs = [started(), started()]
    try:
        with psycopg.connect(database, autocommit=True) as service:
            service.execute(CREATE)
            for number in range(ROWS):
                service.execute(INSERT.replace("5.0", f"{number}.0"))
                if number % 80 == 79:
                    wait_for(lambda half=number // 2: len(sent()) > half, "some rows are sent")  # type: ignore[misc]
                    programs[-2].kill()
                    programs.append(started())
            left = "SELECT count(*) FROM outbox"
            wait_for(lambda: service.execute(left).fetchone() == (0,), "all rows are moved")
        assert sent() == [float(number) for number in range(ROWS)]
    finally:
        for program in programs:
            program.kill()
            program.wait()
