"""``streamworker bench``: measures streamworker and other libraries on your machine."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.support import AsJson, console, print_json, print_table, progress_bar, run_async, say

if TYPE_CHECKING:
    from streamworker.dev.bench.report import Report


class What(StrEnum):
    """The scenes that can be measured."""

    PRODUCE = "produce"
    PROCESS = "process"
    LIMITS = "limits"
    COLUMNS = "columns"
    LATENCY = "latency"
    WAITING = "waiting"
    PARTITIONS = "partitions"
    IDLE = "idle"
    MEMORY = "memory"
    REBALANCE = "rebalance"
    SPARK = "spark"
    ALL = "all"


Url = Annotated[
    str | None,
    typer.Option(
        "--redis-url", metavar="URL", help="Measure on this server; by default the command starts one."
    ),
]
Runs = Annotated[int, typer.Option("--runs", metavar="N", min=1, max=99, help="Runs of each program.")]
Records = Annotated[
    int, typer.Option("--records", metavar="N", min=1000, max=50_000_000, help="Records of one run.")
]
Partitions = Annotated[
    int, typer.Option("--partitions", metavar="N", min=1, max=256, help="Partitions that hold the records.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table as docs/performance.md has it.")]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the bars into this file.")]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile", metavar="FILE", help="Run a worker once more under pyinstrument; .html or plain text."
    ),
]
Check = Annotated[
    Path | None,
    typer.Option(
        "--check", metavar="FILE", help="Fail if a ratio is more than 25% worse than the one in this file."
    ),
]
Ratios = Annotated[
    Path | None, typer.Option("--ratios", metavar="FILE", help="Write the ratios to this file.")
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", help="App name in the keys: bench-..., and unused; random by default."
    ),
]


def bench(
    what: Annotated[
        What,
        typer.Argument(
            metavar="SCENE",
            help="produce, process, limits, columns, latency, waiting, partitions, idle, memory, "
            "rebalance, spark or all.",
        ),
    ] = What.ALL,
    redis_url: Url = None,
    runs: Runs = 5,
    records: Records = 300_000,
    partitions: Partitions = 1,
    json: AsJson = False,
    markdown: Markdown = False,
    svg: Svg = None,
    profile: Profile = None,
    ratios: Ratios = None,
    check: Check = None,
    name: Name = None,
) -> None:
    """Measure how fast streamworker is on this machine, beside other libraries.

    Workers and the programs of other libraries run in turn on the same records. A run ends when the
    server has the last acknowledgement. The command prints medians, the ratio of adjacent runs, and
    its spread. Its keys begin with sw:{bench- and a random name; it removes them at the end, also
    after Ctrl-C. It leaves out libraries that are not installed, and names them; install them with
    pip install 'streamworker[bench]'.

    \b
    Examples:
      streamworker bench process
      streamworker bench all --redis-url redis://localhost:6379/0 --json
      streamworker bench process --runs 3 --records 100000 --profile worker.html
    """
    _check_tools(profile)
    known = None if check is None else _read_ratios(check)
    options = f" --redis-url {'...'}" if redis_url else ""
    command = (
        f"streamworker bench {what} --runs {runs} --records {records} --partitions {partitions}{options}"
    )
    report = _measure(what, redis_url, runs, records, partitions, command, name, profile)
    _show(report, as_json=json, as_markdown=markdown)
    if svg is not None:
        from streamworker.dev.bench import report as pages

        svg.write_text(pages.svg(report.rows), "utf-8")
    # A reference file without the failed scene would never be compared for that scene again.
    if ratios is not None and not report.failed:
        _write_ratios(ratios, report)
    if known is not None:
        _compare(report, known)
    if report.failed:
        raise typer.Exit(ExitCode.FAILED)


def _check_tools(profile: Path | None) -> None:
    from importlib.util import find_spec

    from streamworker.errors import ConfigurationError

    if profile is not None and find_spec("pyinstrument") is None:
        raise ConfigurationError(
            "--profile needs pyinstrument, which is not installed.",
            remedy="Run: pip install 'streamworker[bench]'",
        )


def _measure(
    what: What,
    redis_url: str | None,
    runs: int,
    records: int,
    partitions: int,
    command: str,
    name: str | None,
    profile: Path | None,
) -> "Report":
    from contextlib import ExitStack

    from streamworker.dev.bench.scenes.table import SCENES, run_bench
    from streamworker.dev.server import EmbeddedServer

    names = list(SCENES) if what is What.ALL else [what.value]
    with ExitStack() as stack:
        url = redis_url or stack.enter_context(EmbeddedServer(maxmemory="4gb")).url
        bar = stack.enter_context(progress_bar(known=False))
        task = bar.add_task("starting")

        async def measure() -> "Report":
            return await run_bench(
                url,
                names,
                runs=runs,
                records=records,
                partitions=partitions,
                command=command,
                name=name,
                say=lambda text: bar.update(task, description=text),
                warn=lambda text: say(f"Warning: {text}", error=True),
                profile=profile,
            )

        return run_async(measure)


def _show(report: "Report", *, as_json: bool, as_markdown: bool) -> None:
    from streamworker.dev.bench import report as pages
    from streamworker.dev.bench.figures import COLUMNS

    if as_json:
        print_json(report.as_json())
        return
    if as_markdown:
        say(*pages.markdown(report).splitlines())
        return
    print_table(COLUMNS, [row.cells() for row in report.rows])
    if console().is_terminal:
        say(*pages.chart(report.rows))
    say("", f"Medians of {report.runs} runs in turn on {pages.machine_line(report.machine)}.")
    say(*(f"Left out: {reason}" for reason in report.left_out))
    say(*(f"Failed: {reason}" for reason in report.failed), error=True)


def _read_ratios(path: Path) -> dict[str, float]:
    import msgspec

    from streamworker.errors import ConfigurationError

    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, float])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(
            f"{path} holds no ratios: {error}", remedy="Make it with: streamworker bench --ratios FILE"
        ) from error


def _write_ratios(path: Path, report: "Report") -> None:
    import msgspec

    path.write_bytes(msgspec.json.format(msgspec.json.encode(report.ratios), indent=2) + b"\n")


def _compare(report: "Report", known: dict[str, float]) -> None:
    from streamworker.dev.bench.figures import fallen

    found = fallen(report.rows, known)
    for row, before in found:
        say(f"{row.scene}: the ratio is {row.ratio:.2f}, and was {before:.2f}: {row.what}", error=True)
    if found:
        raise typer.Exit(ExitCode.FAILED)
