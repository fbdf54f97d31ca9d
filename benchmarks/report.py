"""The report of a bench as Markdown, as JSON, and as bars on a terminal or in an SVG."""

from collections.abc import Sequence
from html import escape

import msgspec

from benchmarks.figures import COLUMNS, LOOP, Row
from benchmarks.measuring.figures import BenchFigures, compact, machine_line

BAR_CHARACTERS = 40
FULL, HALF = "█", "▌"


class Report(msgspec.Struct, kw_only=True):
    """The results of a bench."""

    machine: dict[str, str]
    rows: list[Row]
    left_out: list[str]
    runs: int
    command: str
    failed: list[str] = msgspec.field(default_factory=list)
    """The failed scenes, each with the reason."""

    def as_json(self) -> dict[str, object]:
        """Return the report for JSON."""
        return {
            "command": self.command,
            "runs": self.runs,
            "machine": self.machine,
            "rows": [row.as_json() for row in self.rows],
            "left_out": self.left_out,
            "failed": self.failed,
        }

    @property
    def ratios(self) -> dict[str, float]:
        """Return the ratios for ``ratios.json``: those to the hand-written loop, which runs everywhere."""
        return {row.scene: round(row.ratio, 3) for row in self.rows if row.against.name == LOOP}


def markdown(report: Report) -> str:
    """Return the table for docs/performance.md."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(row.cells())} |" for row in report.rows]
    lines += [
        "",
        f"Medians of {report.runs} runs in turn: `{report.command}`, on {machine_line(report.machine)}.",
    ]
    lines += ["", *(f"- Left out: {reason}" for reason in report.left_out)]
    lines += [f"- Failed: {reason}" for reason in report.failed]
    return "\n".join(lines).rstrip() + "\n"


def chart(rows: Sequence[Row]) -> list[str]:
    """Return bars for a terminal: two for each row, on one scale."""
    lines = []
    for row in rows:
        lines.append(row.what)
        longest = max(row.ours.median, row.against.median)
        lines += [_bar(each, longest) for each in (row.ours, row.against)]
    return lines


def _bar(figures: BenchFigures, longest: float) -> str:
    halves = round(2 * BAR_CHARACTERS * figures.median / longest) if longest else 0
    bar = FULL * (halves // 2) + HALF * (halves % 2)
    return f"  {figures.name[:26]:26} {bar} {compact(figures.median)} {figures.unit}"


ROW_PX, BAR_PX, LEFT_PX, WIDTH_PX = 64, 16, 220, 860


def svg(rows: Sequence[Row]) -> str:
    """Return the same bars as an SVG image."""
    size = f'width="{WIDTH_PX}" height="{ROW_PX * len(rows) + 8}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">']
    room = WIDTH_PX - LEFT_PX - 140
    for at, row in enumerate(rows):
        top = at * ROW_PX + 18
        parts.append(f'<text x="8" y="{top}" font-weight="bold">{escape(row.what)}</text>')
        longest = max(row.ours.median, row.against.median) or 1
        for line, (figures, colour) in enumerate(((row.ours, "#2a78d6"), (row.against, "#8a8f98"))):
            y, width = top + 6 + line * (BAR_PX + 2), room * figures.median / longest
            label = escape(f"{compact(figures.median)} {figures.unit}")
            parts += [
                f'<text x="{LEFT_PX - 8}" y="{y + 12}" text-anchor="end">{escape(figures.name)}</text>',
                f'<rect x="{LEFT_PX}" y="{y}" width="{width:.1f}" height="{BAR_PX}" fill="{colour}"/>',
                f'<text x="{LEFT_PX + width + 6:.1f}" y="{y + 12}">{label}</text>',
            ]
    return "\n".join([*parts, "</svg>"]) + "\n"
