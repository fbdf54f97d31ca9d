"""Figures of some runs, and the machine that they are of."""

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class BenchFigures:
    """The figures of one program, one for each run.

    >>> BenchFigures("batch handler", "events/s", (300.0, 100.0, 200.0)).median
    200.0
    """

    name: str
    unit: str
    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the median of all runs."""
        return median(self.runs)

    def as_json(self) -> dict[str, object]:
        """Return the figures for JSON."""
        return {**asdict(self), "median": self.median, "least": min(self.runs), "most": max(self.runs)}


def figures_of(
    found: Mapping[str, Sequence[object]], field: str, unit: str, *, what: str = "{}"
) -> dict[str, BenchFigures]:
    """Return one field of all results, by the name of the program, as the figures of each program.

    ``what`` is the name of the figures, with the name of the program as ``{}``.
    """
    return {
        name: BenchFigures(what.format(name), unit, tuple(getattr(run, field) for run in runs))
        for name, runs in found.items()
    }


def compact(value: float) -> str:
    """Format a figure with three significant digits, or all digits from 1,000 on.

    >>> compact(326_412.7), compact(12.34), compact(0.0123)
    ('326,413', '12.3', '0.0123')
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def machine_line(machine: Mapping[str, str]) -> str:
    """Return the machine and the versions in one line."""
    return ", ".join(f"{name} {value}" for name, value in machine.items())


LIBRARIES = ("streamworker", "redis", "hiredis", "msgspec", "pyarrow", "uvloop", "pyspark")


def describe(server: str, *, also: Sequence[str] = ()) -> dict[str, str]:
    """Return the machine, the server (name and version) and the versions of the installed libraries."""
    facts = {
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "cpu": _cpu(),
        "system": platform.platform(terse=True),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "server": server,
    }
    for name in (*LIBRARIES, *also):
        with suppress(PackageNotFoundError):
            facts[name] = version(name)
    return facts


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
