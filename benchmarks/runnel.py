"""Makes the environment of runnel, whose last release is of 2020: it needs Python 3.8."""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("runnel==0.1.0b1", "click<8.1", "orjson", "xxhash")


def runnel_python() -> Path | None:
    """Return the Python of an environment with runnel; None where there is no Python 3.8, or no PyPI.

    The first call makes the environment beside that of this process.
    """
    folder = Path(sys.prefix) / "runnel"
    python = folder / "bin" / "python"
    with Path(sys.prefix, "runnel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Another process may be making it.
        if not (folder / "ready").exists():
            base = next(filter(_runs, _candidates()), None)
            if base is None:
                return None
            subprocess.run([base, "-m", "venv", "--clear", folder], check=True)
            if subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=False).returncode:
                return None
            (folder / "ready").touch()
    return python


def _candidates() -> list[Path]:
    found = shutil.which("python3.8")
    return [
        *([Path(found)] if found else []),
        *Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8"),
    ]


def _runs(python: Path) -> bool:
    """A shim of pyenv may be there, and not run."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
