"""Mistakes that are planted in a copy of the project, and whether its tests find them."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUICK = "not soak and not full"


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
    try:
        yield
    finally:
        (copy / name).write_text(text, "utf-8")


def outcome(folder: Path, tests: Sequence[str]) -> int:
    """Run some tests of the copy; return 0 if they pass, and 1 if one fails."""
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", QUICK, *tests)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode


@pytest.mark.timeout(300)  # A mistake by which something never happens is found when the wait for it ends.
class PlantedMistakes:
    """Runs tests in a copy of the project: as it is, and with each of some mistakes."""

    tests: Sequence[str]
    plants: Mapping[str, tuple[str, str, str]]
    """File, right text and wrong text of each mistake."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "mistake" in metafunc.fixturenames:
            metafunc.parametrize("mistake", self.plants)

    @pytest.fixture(scope="class")
    @classmethod
    def copy(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Return a copy of the project that may be spoilt."""
        return copied(tmp_path_factory.mktemp("planted"))

    def test_the_copy_passes_without_a_mistake(self, copy: Path) -> None:
        """Otherwise the next test would prove nothing."""
        assert outcome(copy, self.tests) == 0

    def test_a_planted_mistake_is_found(self, copy: Path, mistake: str) -> None:
        """One test at least fails."""
        with planted(copy, *self.plants[mistake]):
            assert outcome(copy, self.tests) == 1
