"""A user's program with archives, and what a program without one loads."""

import os
import re
import subprocess
import sys
from pathlib import Path

from streamworker.core.data.archives import Archive

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "tests" / "target"


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
