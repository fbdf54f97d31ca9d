"""The output of the demo: progress while it runs, then a verdict and a picture."""

import json
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from streamworker.dev.timeline import Timeline
from streamworker.dev.verdict import Verdict

PLAIN_LINE_S = 10.0
"""Interval of progress lines without a terminal."""
STAGES = ("sent", "processed", "in Spark")


class Reporter:
    """Prints progress bars to a terminal, and plain lines to other outputs.

    With ``json_output`` only one JSON object goes to stdout, and all other output to stderr.
    """

    def __init__(self, *, json_output: bool) -> None:
        self._json = json_output
        self._console = Console(stderr=json_output, highlight=False)
        self._progress: Progress | None = None
        self._bars: list[TaskID] = []
        self._next_line_s = 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(text), soft_wrap=True)

    def fail(self, text: str) -> None:
        """Print an error."""
        self._console.print(Text(text, style="bold red"), soft_wrap=True)

    def begin(self, total: int) -> None:
        """Show a bar for each stage that flights go through."""
        self._next_line_s = time.monotonic() + PLAIN_LINE_S
        if not self._console.is_terminal:
            return
        self._progress = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:>9,.0f}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._bars = [self._progress.add_task(stage, total=total) for stage in STAGES]
        self._progress.start()

    def update(self, sent: int, processed: int, in_spark: int) -> None:
        """Show the progress of each stage."""
        counts = (sent, processed, in_spark)
        if self._progress is not None:
            for bar, count in zip(self._bars, counts, strict=True):
                self._progress.update(bar, completed=count)
        elif time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + PLAIN_LINE_S
            parts = (f"{count:,} {stage}" for stage, count in zip(STAGES, counts, strict=True))
            self.say("          " + ", ".join(parts))

    def end(self) -> None:
        """Remove the bars."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def verdict(self, verdict: Verdict, timeline: Timeline) -> None:
        """Print picture, rebalances and figures, and with ``json_output`` the JSON object."""
        self._console.print()
        self._console.print("Who owned which partition when", style="bold")
        for line in timeline.render(min(self._console.width, 120)):
            self._console.print(line, soft_wrap=True)
        self._console.print()
        self._console.print(_rebalances(verdict))
        self._console.print(_figures(verdict))
        if verdict.holds:
            self._console.print(f"All checks passed after {verdict.seconds:.0f} s.", style="bold green")
        else:
            self._console.print("A check failed.", style="bold red")
        if self._json:
            print(json.dumps(verdict.as_json()), file=sys.stdout, flush=True)


def _rebalances(verdict: Verdict) -> Table:
    table = Table(title="Rebalances", title_justify="left", title_style="bold")
    for name in ("cause", "worker"):
        table.add_column(name)
    for name in ("partitions moved", "handover", "since start or signal"):
        table.add_column(name, justify="right")
    for one in verdict.rebalances:
        took = "not finished" if one.ms is None else f"{one.ms:,} ms"
        after = verdict.after_ms.get(one.generation)
        since = "" if after is None else f"{after:,} ms"
        table.add_row(one.cause, one.member, str(len(one.moved)), took, since)
    return table


def _figures(verdict: Verdict) -> Table:
    table = Table(title="Spark's tables against the data set", title_justify="left", title_style="bold")
    table.add_column("what")
    table.add_column("is", justify="right")
    table.add_column("must be", justify="right")
    table.add_column("")
    rows: list[tuple[str, int | str, int | str]] = [
        ("flights sent", verdict.sent, verdict.expected),
        ("rows in the table of legs", verdict.spark_rows, verdict.expected),
        ("flights lost", verdict.lost, 0),
        ("duplicate rows", verdict.duplicates, 0),
        ("legs of an aircraft out of order", verdict.out_of_order, 0),
        ("delays of each carrier and day", "equal" if verdict.aggregate_equal else "different", "equal"),
        ("rebalances that did not happen", verdict.missing_rebalances.total(), 0),
    ]
    if verdict.archived is not None:
        equal = "equal" if verdict.archive_equal else "different"
        rows.append(("records in the archive", verdict.archived, verdict.expected))
        rows.append(("flights in the archive", equal, "equal"))
    for what, found, needed in rows:
        good = found == needed
        cells = (f"{cell:,}" if isinstance(cell, int) else cell for cell in (found, needed))
        table.add_row(what, *cells, Text("ok" if good else "WRONG", style="green" if good else "bold red"))
    return table
