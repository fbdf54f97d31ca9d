"""Figures of some runs, and the report that ``streamworker bench`` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import msgspec


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one program, one for each run.

    Examples
    --------
    >>> Figures("batch handler", "events/s", (300.0, 100.0, 200.0)).median
    200.0
    """

    name: str
    unit: str
    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the median of all runs."""
        return median(self.runs)

    @property
    def spread(self) -> str:
        """Return minimum and maximum as text."""
        return f"{compact(min(self.runs))} to {compact(max(self.runs))}"

    def as_json(self) -> dict[str, object]:
        """Return the figures for JSON."""
        return {**asdict(self), "median": self.median, "least": min(self.runs), "most": max(self.runs)}


def figures_of(
    found: Mapping[str, Sequence[object]], field: str, unit: str, *, what: str = "{}"
) -> dict[str, Figures]:
    """Return one field of all results as the figures of each program.

    Parameters
    ----------
    found
        The results of each run, by the name of the program.
    field
        Attribute of the results.
    unit
        Unit of the field.
    what
        Name of the figures, with the name of the program as ``{}``.
    """
    return {
        name: Figures(what.format(name), unit, tuple(getattr(run, field) for run in runs))
        for name, runs in found.items()
    }


def compact(value: float) -> str:
    """Format a figure with three significant digits, or all digits from 1,000 on.

    Examples
    --------
    >>> compact(326_412.7), compact(12.34), compact(0.0123)
    ('326,413', '12.3', '0.0123')
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def machine_line(machine: Mapping[str, str]) -> str:
    """Return the machine and the versions in one line."""
    return ", ".join(f"{name} {value}" for name, value in machine.items())


COLUMNS = ("scene", "what", "median", "spread")


class Report(msgspec.Struct, kw_only=True):
    """The results of ``streamworker bench``."""

    machine: dict[str, str]
    figures: dict[str, list[Figures]]
    """The figures of each scene."""
    runs: int
    command: str

    def rows(self) -> list[list[str]]:
        """Return the cells of the table, in the order of ``COLUMNS``."""
        return [
            [scene, each.name, f"{compact(each.median)} {each.unit}", each.spread]
            for scene, found in self.figures.items()
            for each in found
        ]

    def as_json(self) -> dict[str, object]:
        """Return the report for JSON."""
        return {
            "command": self.command,
            "runs": self.runs,
            "machine": self.machine,
            "figures": [
                {"scene": scene, **each.as_json()} for scene, found in self.figures.items() for each in found
            ],
        }
