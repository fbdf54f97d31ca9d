"""A user's program with archives, and what a program without one loads."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from streamworker import App
from streamworker.archive.store import store_at
from streamworker.core.data.archives import Archive
from streamworker.testing import local_worker
from tests.helpers import wait_for_async

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "tests" / "target"


class Number(msgspec.Struct):
    value: int


@pytest.mark.full("runs mypy")
def test_a_program_with_archives_is_typed_and_its_commands_exist() -> None:
    """Mypy --strict passes it, and each command of its head shows its help."""
    program = TARGET / "archive.py"
    checked = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, program.name]
    done = subprocess.run(checked, cwd=TARGET, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    commands = re.findall(
        r"^    streamworker ((?:archive )?[a-z]+) ", program.read_text("utf-8"), re.MULTILINE
    )
    assert len(commands) == 6
    for command in commands:
        told = [sys.executable, "-m", "streamworker", *command.split(), "--help"]
        assert subprocess.run(told, capture_output=True, text=True, check=False).returncode == 0, command


def test_a_program_with_archives_declares_what_it_says() -> None:
    """Its stream and its acked log are archived, and a group archives the stream."""
    program = "import sys; sys.path.insert(0, '.'); from archive import app; registry = app.registry; "
    program += "print([*registry.archived], [each.called for each in registry.groups], "
    program += "registry.streams['orders'].spec.archive)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=TARGET, capture_output=True, text=True, check=True
    )
    archive = Archive("s3://lake/orders", every="10 minutes", size="64 MB", after="1 minute", keep="2 years")
    expected = f"['orders', 'large'] ['large', 'late', 'orders.archive'] {archive}"
    assert done.stdout.strip() == expected


PLAIN = """
import sys, anyio, msgspec
from streamworker import App
from streamworker.testing import local_worker

app, seen = App("shop"), []

class Number(msgspec.Struct):
    value: int

numbers = app.stream("numbers", Number, partitions=1)

@app.processor(numbers)
async def take(number: Number) -> Number:
    seen.append(number.value)
    return number

async def run():
    async with local_worker(app) as worker:
        await numbers.send(Number(7))
        await worker.until_drained()

anyio.run(run)
assert seen == [7]
print(sorted(m for m in sys.modules if m.partition(".")[0] == "obstore" or m.startswith(ALL)))
"""


def test_a_worker_without_archives_loads_none_of_it() -> None:
    """Neither the store's client nor a module of archives."""
    ours = ("streamworker.archive", "streamworker.runtime.archive.", "streamworker.runtime.read.cold")
    program = PLAIN.replace("ALL", repr(ours))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.anyio
@pytest.mark.parametrize("clock", ["real", "virtual"])
async def test_a_test_of_an_app_writes_nothing_to_its_archive(
    tmp_path: Path, clock: Literal["real", "virtual"]
) -> None:
    """On a server in memory the archive is in memory, too: else production would refuse its own."""
    app = App("shop")
    archive = Archive(str(tmp_path / "lake"), every="100 ms", after="0 seconds")
    numbers = app.stream("numbers", Number, partitions=1, archive=archive)

    for _ in range(2):
        async with local_worker(app, clock=clock):
            await numbers.send(Number(7))
            archived = partial(store_at(archive.url).names, "partition=0")
            await wait_for_async(archived, "the record is archived")
    assert not (tmp_path / "lake").exists()
