"""Describes the machine, the server and the versions behind the figures."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = (
    "streamworker",
    "redis",
    "hiredis",
    "msgspec",
    "pyarrow",
    "uvloop",
    "pyspark",
)


def describe(server: str, *, also: Sequence[str] = ()) -> dict[str, str]:
    """Return the machine, the server and the versions of the installed libraries.

    Parameters
    ----------
    server
        Name and version of the server.
    also
        Further libraries whose versions are of interest.
    """
    facts = {
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "cpu": _cpu(),
        "system": platform.platform(terse=True),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "server": server,
    }
    for name in (*LIBRARIES, *also):
        found = version_of(name)
        if found is not None:
            facts[name] = found
    return facts


def version_of(name: str) -> str | None:
    """Return the version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
