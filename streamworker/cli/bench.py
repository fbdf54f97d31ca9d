"""``streamworker bench``: measures sending and handling on your machine."""

from enum import StrEnum
from typing import Annotated

import typer

from streamworker.cli.support import AsJson, print_json, print_table, progress_bar, run_async, say


class What(StrEnum):
    """The scenes that can be measured."""

    PRODUCE = "produce"
    PROCESS = "process"
    COLUMNS = "columns"
    LATENCY = "latency"
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


def bench(
    what: Annotated[
        What, typer.Argument(metavar="SCENE", help="produce, process, columns, latency or all.")
    ] = What.ALL,
    redis_url: Url = None,
    runs: Runs = 5,
    records: Records = 300_000,
    partitions: Partitions = 1,
    json: AsJson = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="App name in the keys: bench-..., and unused; random by default."
        ),
    ] = None,
) -> None:
    """Measure how fast streamworker is on this machine.

    Each measured program is a process of its own, and programs run in turn on the same records. A
    run ends when the server has the last acknowledgement. The command prints medians and their
    spread. Its keys begin with sw:{bench- and a random name; it removes them at the end, also after
    Ctrl-C.

    \b
    Examples:
      streamworker bench process
      streamworker bench all --redis-url redis://localhost:6379/0 --json
    """
    from contextlib import ExitStack

    from streamworker.dev.bench.figures import COLUMNS, Report, machine_line
    from streamworker.dev.bench.scenes import SCENES, run_bench
    from streamworker.dev.server import EmbeddedServer

    options = " --redis-url ..." if redis_url else ""
    command = (
        f"streamworker bench {what} --runs {runs} --records {records} --partitions {partitions}{options}"
    )
    with ExitStack() as stack:
        url = redis_url or stack.enter_context(EmbeddedServer(maxmemory="4gb")).url
        bar = stack.enter_context(progress_bar(known=False))
        task = bar.add_task("starting")

        async def measure() -> Report:
            return await run_bench(
                url,
                list(SCENES) if what is What.ALL else [what.value],
                runs=runs,
                records=records,
                partitions=partitions,
                command=command,
                name=name,
                say=lambda text: bar.update(task, description=text),
                warn=lambda text: say(f"Warning: {text}", error=True),
            )

        report = run_async(measure)
    if json:
        print_json(report.as_json())
        return
    print_table(COLUMNS, report.rows())
    say("", f"Medians of {report.runs} runs on {machine_line(report.machine)}.")
