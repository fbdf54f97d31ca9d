"""What a user installs: the package, nothing that only maintainers use, and with it what users do first.

`make release-check` runs all of it, on each Python and with the oldest and the newest of what we depend on.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.blocks import save
from tests.helpers import wait_for

ROOT = Path(__file__).parent.parent
MOVED = {
    "streamworker/spark/pyspark_streamworker/__init__.py": "pyspark_streamworker/__init__.py",
    "streamworker/testing/pytest_streamworker/__init__.py": "pytest_streamworker/__init__.py",
}
"""What Spark and pytest find at the top level only."""
MAINTAINERS = {"benchmarks", "docs", "examples", "peers", "tests"}
"""Folders that are not in the wheel."""
VERSION = "8.7.6"
"""What the tag of these builds says."""
PYTHONS = ("3.11", "3.12", "3.13")
OURS_ALONE = {"bench", "check", "fuzz", "nospark", "test"}
"""Extras that no user installs."""
PYRIGHT = "pyright@1.1.414"


def done(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command that must succeed, and return what it printed."""
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sdist of a tagged checkout and the wheel that was made of that sdist."""
    folder = tmp_path_factory.mktemp("release")
    done("git", "clone", "--quiet", "--no-tags", ROOT, folder / "clone")
    done("git", "tag", f"v{VERSION}", cwd=folder / "clone")
    done(sys.executable, "-m", "build", "--outdir", folder, folder / "clone")
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def test_the_wheel_is_made_of_the_package_alone() -> None:
    """tests/test_layers.py says of each of its modules that users need it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    target = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(target) == {"packages", "exclude", "force-include"}
    assert target["packages"] == ["streamworker"]
    assert target["force-include"] == MOVED


@pytest.mark.full("builds it, with what PyPI has")
def test_a_wheel_has_the_version_of_the_tag_the_files_of_the_package_and_no_other(
    built: Path, wheel: Path
) -> None:
    """It is built as a release is."""
    assert wheel.name == f"streamworker-{VERSION}-py3-none-any.whl"
    assert (built / f"streamworker-{VERSION}.tar.gz").is_file()
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = done("git", "ls-files", "streamworker", cwd=built / "clone").split()
    assert files == {MOVED.get(path, path) for path in package}
    assert {path for path in files if not MAINTAINERS.isdisjoint(Path(path).parent.parts)} == set()


def lower_bounds(wheel: Path) -> Iterator[str]:
    """Yield the oldest version that the wheel allows of each thing that users install with it."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"streamworker-{VERSION}.dist-info/METADATA"))
    for requirement in map(Requirement, metadata.get_all("Requires-Dist", ())):
        extra = re.search(r"extra == ['\"](\w+)", str(requirement.marker))
        if not extra or extra[1] not in OURS_ALONE:
            yield from (
                f"{requirement.name}=={bound.version}\n"
                for bound in requirement.specifier
                if bound.operator in {">=", "=="}
            )


def installed(
    wheel: Path, folder: Path, *, python: str = "", oldest: bool = False, extras: str = "dev"
) -> Path:
    """Install the wheel with extras into an empty environment, and return the folder of its commands."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python{python}"))
    found = [path for path in (shutil.which(f"python{python}"), *pyenv) if path and _runs(path)]
    if python and not found:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"there is no Python {python} here")
    done(found[0] if python else sys.executable, "-m", "venv", folder / "env")
    constraints = folder / "oldest.txt"
    constraints.write_text("".join(lower_bounds(wheel)) if oldest else "", "utf-8")
    commands = folder / "env" / "bin"
    done(commands / "pip", "install", "--quiet", "-c", constraints, f"{wheel}[{extras}]")
    return commands


def _runs(python: str | Path) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("oldest", [False, True], ids=["newest", "oldest"])
@pytest.mark.parametrize("python", PYTHONS)
def test_what_was_installed_runs_the_first_program_of_the_readme(
    wheel: Path, python: str, oldest: bool, tmp_path: Path
) -> None:
    """With the newest of what it depends on, and with the oldest that pyproject.toml allows."""
    commands = installed(wheel, tmp_path, python=python, oldest=oldest)
    streamworker = commands / "streamworker"
    print(done(commands / "pip", "freeze"))
    assert done(streamworker, "--version") == f"streamworker {VERSION}\n"
    for command in ([], ["run"], ["dev"], ["send"], ["dead", "list"]):
        assert "Usage: streamworker" in done(streamworker, *command, "--help")
    save("README.md", tmp_path)
    orders = [{"order_id": n, "customer": f"c{n % 3}", "amount": 50.0 * n} for n in range(10)]
    (tmp_path / "orders.jsonl").write_text("\n".join(map(json.dumps, orders)), "utf-8")
    with (tmp_path / "dev.log").open("w") as log:
        dev = subprocess.Popen(
            [streamworker, "dev", "shop:app", "--workers", "2", "--no-tui", "--no-spark"],
            cwd=tmp_path, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for((tmp_path / ".streamworker-dev.json").exists, "dev has started", 120)
        done(streamworker, "wait", "shop:app", "--joined", "2", cwd=tmp_path)
        done(streamworker, "send", "shop:orders", "orders.jsonl", cwd=tmp_path)

        def rows() -> set[int]:
            shown = done(streamworker, "peek", "shop:large", cwd=tmp_path)
            return set(map(int, re.findall(r'"order_id": ?(\d+)', shown)))

        wait_for(lambda: rows() == set(range(2, 10)), "the large orders are in the acked log", 60)
        dev.send_signal(signal.SIGTERM)
        assert dev.wait(60) == 0, (tmp_path / "dev.log").read_text("utf-8")
    finally:
        if dev.poll() is None:
            os.killpg(dev.pid, signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_type_checkers_read_the_types_of_what_was_installed(wheel: Path, tmp_path: Path) -> None:
    """Both mypy and pyright pass a user's programs, and find the mistake in one."""
    commands = installed(wheel, tmp_path, extras="testing")
    done(commands / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", "fastapi", "httpx", "pytest")
    python = commands / "python"
    sample = tmp_path / "sample"
    sample.mkdir()
    target = ROOT / "tests" / "target"
    for path in (
        *(ROOT / "examples" / "shop").glob("*.py"),
        *(target / name for name in ("web.py", "windows.py")),
    ):
        shutil.copy(path, sample)
    mypy: list[str | Path] = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python]
    done(*mypy, *sample.glob("*.py"), cwd=sample)
    if not shutil.which("npx"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("pyright needs npx, which comes with Node.js")
    pyright: list[str | Path] = ["npx", "--yes", PYRIGHT, "--pythonpath", python]
    done(*pyright, ".", cwd=sample)
    wrong = tmp_path / "wrong.py"
    wrong.write_text('from streamworker import App\n\nApp("shop").processr\n', "utf-8")
    for checker in (mypy, pyright):
        result = subprocess.run([*checker, wrong], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 1 and "processr" in result.stdout, result.stdout
