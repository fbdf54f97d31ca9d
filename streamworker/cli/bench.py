"""``streamworker bench``: measures sending and handling on your machine."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from typing import Annotated, TypeVar

from streamworker.cli.options import AsJson, argument, option
from streamworker.cli.output import print_json, print_table, progress_bar, say
from streamworker.cli.support import run_async
from streamworker.tui.figures import counted

T = TypeVar("T")

What = StrEnum("What", ["PRODUCE", "PROCESS", "COLUMNS", "LATENCY", "ALL"])
"""The scenes that can be measured."""

Url = Annotated[
    str | None, option("--redis-url URL", "Measure on this server; by default the command starts one.")
]
Runs = Annotated[int, option("--runs N", "Runs of each program.", min=1, max=99)]
Records = Annotated[int, option("--records N", "Records of one run.", min=1000, max=50_000_000)]
Partitions = Annotated[int, option("--partitions N", "Partitions that hold the records.", min=1, max=256)]


def bench(
    what: Annotated[What, argument("SCENE", "produce, process, columns, latency or all.")] = What.ALL,
    redis_url: Url = None,
    runs: Runs = 5,
    records: Records = 300_000,
    partitions: Partitions = 1,
    json: AsJson = False,
    name: Annotated[
        str | None, option("--name NAME", "App name in the keys: bench-..., and unused; random by default.")
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
    from streamworker.dev.bench.figures import COLUMNS, machine_line
    from streamworker.dev.bench.scenes import SCENES, run_bench

    run = partial(run_bench, name=name)
    report = measure(run, "streamworker bench", what.value, SCENES, redis_url, runs, records, partitions)
    if json:
        print_json(report.as_json())
        return
    print_table(COLUMNS, report.rows())
    say("", f"Medians of {counted(report.runs, 'run')} on {machine_line(report.machine)}.")


def measure(
    run: Callable[..., Awaitable[T]],
    program: str,
    what: str,
    scenes: Iterable[str],
    redis_url: str | None,
    runs: int,
    records: int,
    partitions: int,
) -> T:
    """Measure one scene, or all, on the server of a URL, or on one that ends with the bench.

    ``run`` takes what :func:`run_bench` takes; ``program`` begins the command line of the report.
    """
    from streamworker.dev.server import EmbeddedServer

    options = " --redis-url ..." if redis_url else ""
    with ExitStack() as stack:
        url = redis_url or stack.enter_context(EmbeddedServer(maxmemory="4gb")).url
        bar = stack.enter_context(progress_bar(known=False))
        task = bar.add_task("starting")
        bench = partial(
            run,
            url,
            list(scenes) if what == What.ALL else [what],
            runs=runs,
            records=records,
            partitions=partitions,
            command=f"{program} {what} --runs {runs} --records {records} --partitions {partitions}{options}",
            say=lambda text: bar.update(task, description=text),
            warn=lambda text: say(f"Warning: {text}", error=True),
        )
        return run_async(bench)
