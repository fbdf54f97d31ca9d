"""``python -m benchmarks``: measures streamworker beside other programs, for maintainers."""

from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from benchmarks import report as pages
from benchmarks.figures import COLUMNS, fallen
from benchmarks.measuring.figures import machine_line
from benchmarks.report import Report
from benchmarks.scenes.table import SCENES, run_contests
from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.options import AsJson, option
from streamworker.cli.output import console, print_json, print_table, progress_bar, say
from streamworker.cli.support import errors_reported, run_async
from streamworker.core.words import counted
from streamworker.dev.server import EmbeddedServer
from streamworker.errors import ConfigurationError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

What = StrEnum(
    "What",
    "PRODUCE PROCESS BROKERS LIMITS COLUMNS LATENCY QUIET WAITING PARTITIONS IDLE MEMORY STORED "
    "REBALANCE SPARK ALL",
)
"""The scenes that can be measured."""

Url = Annotated[
    str | None, option("--redis-url URL", "Measure on this server; by default the command starts one.")
]
Runs = Annotated[int, option("--runs N", "Runs of each program.", min=1, max=99)]
Records = Annotated[int, option("--records N", "Records of one run.", min=1000, max=50_000_000)]
Partitions = Annotated[int, option("--partitions N", "Partitions that hold the records.", min=1, max=256)]


@app.command()
@errors_reported()
def main(
    what: Annotated[What, typer.Argument(metavar="SCENE")] = What.ALL,
    redis_url: Url = None,
    runs: Runs = 5,
    records: Records = 300_000,
    partitions: Partitions = 1,
    json: AsJson = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as docs/performance.md has it.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw the bars into this file.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile", metavar="FILE", help="Run a worker once more under pyinstrument; .html or text."
        ),
    ] = None,
    before: Annotated[
        Path | None,
        typer.Option(
            "--before", metavar="DIR", help="Measure workers of another checkout, too; scene quiet does."
        ),
    ] = None,
    ratios: Annotated[
        Path | None, typer.Option("--ratios", metavar="FILE", help="Write the ratios to this file.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="FILE",
            help="Fail if a ratio is more than 25% worse than the one in this file.",
        ),
    ] = None,
) -> None:
    """Measure streamworker and the programs of other libraries in turn, on the same records."""
    known = {} if check is None else _read_ratios(check)
    report = _measure(what, redis_url, runs, records, partitions, profile, before and before.resolve())
    _show(report, as_json=json, as_markdown=markdown)
    if svg is not None:
        svg.write_text(pages.svg(report.rows), "utf-8")
    # A reference file without the failed scene would never be compared for that scene again.
    if ratios is not None and not report.failed:
        ratios.write_bytes(msgspec.json.format(msgspec.json.encode(report.ratios), indent=2) + b"\n")
    found = fallen(report.rows, known)
    for row, known_ratio in found:
        say(f"{row.scene}: the ratio is {row.ratio:.2f}, and was {known_ratio:.2f}: {row.what}", error=True)
    if found or report.failed:
        raise typer.Exit(ExitCode.FAILED)


def _measure(
    what: What,
    redis_url: str | None,
    runs: int,
    records: int,
    partitions: int,
    profile: Path | None,
    before: Path | None,
) -> Report:
    """Measure one scene, or all, on the server of a URL, or on one that ends with the bench."""
    counts = f"--runs {runs} --records {records} --partitions {partitions}"
    with ExitStack() as stack:
        url = redis_url or stack.enter_context(EmbeddedServer(maxmemory="4gb")).url
        bar = stack.enter_context(progress_bar(known=False))
        task = bar.add_task("starting")
        bench = partial(
            run_contests,
            url,
            list(SCENES) if what == What.ALL else [what.value],
            runs=runs,
            records=records,
            partitions=partitions,
            command=f"python -m benchmarks {what} {counts}{' --redis-url ...' if redis_url else ''}",
            say=lambda text: bar.update(task, description=text),
            warn=lambda text: say(f"Warning: {text}", error=True),
            profile=profile,
            before=before,
        )
        return run_async(bench)


def _show(report: Report, *, as_json: bool, as_markdown: bool) -> None:
    if as_json:
        print_json(report.as_json())
        return
    if as_markdown:
        say(*pages.markdown(report).splitlines())
        return
    print_table(COLUMNS, [row.cells() for row in report.rows])
    if console().is_terminal:
        say(*pages.chart(report.rows))
    say("", f"Medians of {counted(report.runs, 'run')} in turn on {machine_line(report.machine)}.")
    say(*(f"Left out: {reason}" for reason in report.left_out))
    say(*(f"Failed: {reason}" for reason in report.failed), error=True)


def _read_ratios(path: Path) -> dict[str, float]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, float])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(
            f"{path} holds no ratios: {error}", remedy="Make it with: python -m benchmarks --ratios FILE"
        ) from error


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
