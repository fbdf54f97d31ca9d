"""``streamworker dev``: the whole system on one machine, in one command."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.rendezvous import announced
from streamworker.cli.run import Format, Level, LogFormat, LogLevel
from streamworker.cli.support import AppPath, say

if TYPE_CHECKING:
    from streamworker.importing import Selection


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

    The server is embedded, belongs to this command and ends with it; an app that names another
    Redis uses this one, and so do `send`, `status` and all other commands in this folder
    meanwhile. `q` or Ctrl-C stops everything: workers drain first; a second Ctrl-C ends all at
    once.

    \b
    Examples:
      streamworker dev shop:app
      streamworker dev shop:app --workers 5 --no-spark
      streamworker dev shop:app --keep-data ./data
    """
    from streamworker.dev.server import EmbeddedServer
    from streamworker.importing import REDIS_URL_OVERRIDE, resolve_processors

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
        # For the children, and for our own look at the groups.
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
    path: str, selection: "Selection", options: list[str], *, workers: int, spark: bool, log_file: Path | None
) -> int:
    from streamworker.cli.children import Children, two_stages
    from streamworker.cli.top import show

    with Children(log_file=log_file) as children, two_stages(children.stop, children.force):
        for number in range(1, workers + 1):
            children.start(f"worker w{number}", ["run", path, "--name", f"w{number}", *options])
        if spark:
            children.start("spark", ["spark", path, *options], essential=False)
        say(f"Started {workers} workers{' and Spark' if spark else ''}.", error=True)
        if log_file is not None:
            show(selection, stopped=lambda: not children.running)
            say("Stopping: workers finish what is in hand.", error=True)
            children.stop()
        code = children.wait()
        if children.failed and log_file is not None:
            _print_tail(log_file)
        return code


def _print_tail(log_file: Path, lines: int = 20) -> None:
    """Show the end of the log, which may be in a folder that goes away with us."""
    tail = log_file.read_text("utf-8", "replace").splitlines()[-lines:]
    for line in tail:
        say(f"  {line}", error=True)
