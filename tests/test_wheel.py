"""What a user installs: the package, and nothing that only maintainers use."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOVED = {
    "streamworker/spark/pyspark_streamworker/__init__.py": "pyspark_streamworker/__init__.py",
    "streamworker/testing/pytest_streamworker/__init__.py": "pytest_streamworker/__init__.py",
}
"""What Spark and pytest find at the top level only."""
MAINTAINERS = {"benchmarks", "docs", "examples", "peers", "tests"}
"""Folders that are not in the wheel."""


def test_the_wheel_is_made_of_the_package_alone() -> None:
    """tests/test_layers.py says of each of its modules that users need it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel) == {"packages", "exclude", "force-include"}
    assert wheel["packages"] == ["streamworker"]
    assert wheel["force-include"] == MOVED


@pytest.mark.full("builds it, with what PyPI has")
def test_a_wheel_has_the_files_of_the_package_and_no_other(tmp_path: Path) -> None:
    """It is built as a release is."""
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", tmp_path, ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("streamworker-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    found = (path for path in (ROOT / "streamworker").rglob("*") if path.is_file())
    package = {path.relative_to(ROOT).as_posix() for path in found}
    assert files == {MOVED.get(path, path) for path in package if "__pycache__" not in path}
    assert {path for path in files if not MAINTAINERS.isdisjoint(Path(path).parent.parts)} == set()
