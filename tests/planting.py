"""Mistakes that are planted in a copy of the project, and whether its tests find them."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copied(folder: Path) -> Path:
    """Copy the project into a folder."""
    for name in ("streamworker", "tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@contextmanager
def planted(copy: Path, name: str, right: str, wrong: str) -> Iterator[None]:
    """Plant a mistake in a file of the copy, and take it out again."""
    text = (copy / name).read_text("utf-8")
    assert text.count(right) == 1, f"{name} has {right!r} {text.count(right)} times"
    (copy / name).write_text(text.replace(right, wrong), "utf-8")
    yield
    (copy / name).write_text(text, "utf-8")


def outcome(folder: Path, tests: Sequence[str]) -> int:
    """Run some tests of the copy; return 0 if they pass, and 1 if one fails."""
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode
