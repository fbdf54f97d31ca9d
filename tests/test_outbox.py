"""The program of docs/outbox.md moves rows of a real PostgreSQL, each once, though it is killed."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

from tests.blocks import ROOT, save
from tests.helpers import wait_for
from tests.postgres import postgres
from tests.raw import opened

CREATE, INSERT = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "outbox.md").read_text("utf-8"), re.DOTALL)
ROWS = 400


@pytest.fixture
def database() -> Iterator[str]:
    with postgres() as dsn:
        yield dsn


@pytest.mark.full("starts PostgreSQL, and a program again and again")
def test_each_row_is_sent_once_and_in_order_though_the_program_is_killed(
    database: str, redis_url: str, tmp_path: Path
) -> None:
    """Two programs run, one of which moves; whichever moves is killed again and again."""
    save("docs/outbox.md", tmp_path)
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
