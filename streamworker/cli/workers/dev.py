"""``streamworker dev`` and ``demo``: run server, workers and Spark on one machine."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from streamworker.cli.support import AppPath, say
from streamworker.cli.top import show
from streamworker.cli.workers.children import Children, two_stages
from streamworker.cli.workers.rendezvous import announced
from streamworker.cli.workers.run import Format, Level, LogFormat, LogLevel
from streamworker.core.text import printable_lines
from streamworker.importing import Selection, resolve_processors
from streamworker.tui.figures import counted
from streamworker.variables import REDIS_URL_OVERRIDE

TAIL_LINES = 20
"""Lines of the log that are printed when a process failed behind the live view."""


def dev(
    app: AppPath,
    workers: Annotated[
        int, typer.Option("--workers", "-w", metavar="N", min=1, max=64, help="Worker processes.")
    ] = 3,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Do not run the app's pipelines.")] = False,
    no_tui: Annotated[
        bool, typer.Option("--no-tui", help="Print log lines instead of the live view.")
    ] = False,
    keep_data: Annotated[
        Path | None,
        typer.Option("--keep-data", metavar="DIR", help="Keep the server's data and the log here."),
    ] = None,
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Format.CONSOLE,
) -> None:
    """Run server, workers, Spark and live view together.

    The whole system on one machine, in one command.

    The command starts an embedded server, and stops it at its end. The app uses this server even if
    it names another Redis, and so do `send`, `status` and all other commands in this folder while
    `dev` runs. `q` or Ctrl-C stops everything: workers drain first. A second Ctrl-C ends all
    processes at once.

    \b
    Examples:
      streamworker dev shop:app
      streamworker dev shop:app --workers 5 --no-spark
      streamworker dev shop:app --keep-data ./data
    """
    from streamworker.dev.server import EmbeddedServer

    selection = resolve_processors(app)
    with contextlib.ExitStack() as stack:
        if keep_data is not None:
            keep_data.mkdir(parents=True, exist_ok=True)
            folder = keep_data
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamworker-")))
        server = stack.enter_context(
            EmbeddedServer(data_dir=None if keep_data is None else keep_data / "redis")
        )
        # The children and this process's live view use the embedded server.
        os.environ["STREAMWORKER_REDIS_URL"] = os.environ[REDIS_URL_OVERRIDE] = server.url
        stack.enter_context(announced(server.url))
        selection = resolve_processors(app)
        options = ["--log-level", log_level, "--log-format", log_format]
        raise typer.Exit(
            _run_all(
                app,
                selection,
                options,
                workers=workers,
                spark=bool(selection.app.pipelines) and not no_spark,
                log_file=folder / "streamworker.log" if sys.stdout.isatty() and not no_tui else None,
            )
        )


def _run_all(
    path: str, selection: Selection, options: list[str], *, workers: int, spark: bool, log_file: Path | None
) -> int:
    with Children(log_file=log_file) as children, two_stages(children.stop, children.force):
        for number in range(1, workers + 1):
            children.start(f"worker w{number}", ["run", path, "--name", f"w{number}", *options])
        if spark:
            children.start("spark", ["spark", path, *options], is_worker=False)
        say(f"Started {counted(workers, 'worker')}{' and Spark' if spark else ''}.", error=True)
        if log_file is not None:
            show(selection, stopped=lambda: not children.running)
            say("Stopping: workers finish their batches.", error=True)
            children.stop()
        code = children.wait()
        if children.failed and log_file is not None:
            # The folder of the log may be deleted when this process ends.
            say(*printable_lines(log_file.read_text("utf-8", "replace"))[-TAIL_LINES:], error=True)
        return code


def demo(
    json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object, last.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running, to look at it with top; Ctrl-C ends it.")
    ] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Use a Redis Cluster of three primaries with a replica each.")
    ] = False,
) -> None:
    """Run the whole system on real data, and check it.

    336,776 flights go through workers that join, leave and are killed, into Spark tables. Then
    the command compares the tables with the data set, and checks the order for each aircraft. It
    starts its own server and needs Java, or the extra `java`. It exits with 0 only if all checks pass.

    \b
    Examples:
      streamworker demo
      streamworker demo --json
      streamworker demo --cluster
    """
    from streamworker.dev.demo import run_demo

    raise typer.Exit(run_demo(json_output=json, keep=keep, cluster=cluster))
