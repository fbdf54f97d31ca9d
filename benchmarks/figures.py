"""Figures of paired runs: ratios and targets."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.measuring.figures import BenchFigures, compact


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a ratio.

    Examples
    --------
    >>> Target(1.2).is_met(1.3), Target(0.5, at_most=True).is_met(0.6)
    (True, False)
    """

    value: float
    at_most: bool = False
    is_difference: bool = False
    """Whether the figures are subtracted, not divided; the target then has their unit."""

    def is_met(self, reached: float) -> bool:
        """Whether a ratio or difference meets the target."""
        return reached <= self.value if self.at_most else reached >= self.value

    def text(self, unit: str) -> str:
        """Return the target as text."""
        side = "≤" if self.at_most else "≥"
        return f"{side} +{self.value:g} {unit}" if self.is_difference else f"{side} {self.value:g}x"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: streamworker compared with another program."""

    scene: str
    """Name of the measurement, the key in ``ratios.json``."""
    what: str
    ours: BenchFigures
    against: BenchFigures
    """Of adjacent runs: the first of ``ours`` ran next to the first of these."""
    target: Target | None = None

    @property
    def pairs(self) -> tuple[float, ...]:
        """Return the ratio (or difference) of each pair of adjacent runs."""
        both = zip(self.ours.runs, self.against.runs, strict=True)
        if self.target is not None and self.target.is_difference:
            return tuple(ours - theirs for ours, theirs in both)
        return tuple(ours / theirs for ours, theirs in both)

    @property
    def ratio(self) -> float:
        """Return the median of the pairs."""
        return median(self.pairs)

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.target is None else self.target.is_met(self.ratio)

    def cells(self) -> list[str]:
        """Return the cells of the row as text, in the order of ``COLUMNS``."""
        is_difference = self.target is not None and self.target.is_difference
        shown = f"{self.ratio:+.2f} {self.ours.unit}" if is_difference else f"{self.ratio:.2f}x"
        least, most = min(self.pairs), max(self.pairs)
        target = "" if self.target is None else self.target.text(self.ours.unit)
        return [
            self.what,
            f"{compact(self.ours.median)} {self.ours.unit}",
            f"{self.against.name}: {compact(self.against.median)} {self.against.unit}",
            f"{shown} ({least:.2f} to {most:.2f})",
            target,
            {None: "", True: "yes", False: "no"}[self.is_met],
        ]

    def as_json(self) -> dict[str, object]:
        """Return the row for JSON."""
        return {
            "scene": self.scene,
            "what": self.what,
            "ours": self.ours.as_json(),
            "against": self.against.as_json(),
            "ratio": self.ratio,
            "pairs": list(self.pairs),
            "target": None if self.target is None else asdict(self.target),
            "is_met": self.is_met,
        }


LOOP = "redis-py loop"
"""The contestant that streamworker is compared with first: XREADGROUP, decoding and XACK by hand."""

COLUMNS = ("what", "ours", "against", "ratio (spread)", "target", "met?")


def rows_against(
    scene: str,
    what: str,
    measured: Mapping[str, BenchFigures],
    ours: str,
    targets: Mapping[str, Target | None],
) -> list[Row]:
    """Return a row for each other contestant that was measured."""
    return [
        Row(scene if len(targets) == 1 else f"{scene}-{other}", what, measured[ours], measured[other], target)
        for other, target in targets.items()
        if ours in measured and other in measured
    ]


def fallen(
    rows: Sequence[Row], reference: Mapping[str, float], *, tolerance: float = 0.25
) -> list[tuple[Row, float]]:
    """Return the rows whose ratio is worse than the reference's by more than the tolerance.

    A difference is not compared: it is in milliseconds, which depend on the machine.
    """
    found = []
    for row in rows:
        known = reference.get(row.scene)
        if known is None or (row.target is not None and row.target.is_difference):
            continue
        at_most = row.target is not None and row.target.at_most
        if row.ratio > known * (1 + tolerance) if at_most else row.ratio < known * (1 - tolerance):
            found.append((row, known))
    return found
