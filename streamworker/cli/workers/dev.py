"""``streamworker dev`` and ``demo``: run server, workers and Spark on one machine."""

import contextlib
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from streamworker.app import App
from streamworker.cli.options import AppPath, Yes, argument, option
from streamworker.cli.output import confirm, say
from streamworker.cli.top import show
from streamworker.cli.workers.children import Children, Ends, two_stages
from streamworker.cli.workers.run import Format, Level, LogFormat, LogLevel
from streamworker.cli.workers.serving import LOOPBACK, url_of
from streamworker.core.text import printable_lines
from streamworker.core.words import counted
from streamworker.dev.rendezvous import announced, find
from streamworker.errors import ConfigurationError
from streamworker.importing import Selection, resolve_processors, with_pipelines
from streamworker.spark.driver.checks import CONTROL_FOLDER, checkpoint_of, is_local, local

LOG = "streamworker.log"
TAIL_LINES = 20
"""Lines of the log that are printed when a process failed behind the live view."""


def dev(
    app: AppPath,
    program: Annotated[
        list[str] | None,
        argument("[-- PROGRAM...]", "A program to run beside it, on the same server: -- python feed.py."),
    ] = None,
    workers: Annotated[int, option("--workers -w N", "Worker processes.", min=1, max=64)] = 3,
    no_spark: Annotated[bool, option("--no-spark", "Do not run the app's pipelines.")] = False,
    no_tui: Annotated[bool, option("--no-tui", "Print log lines instead of the live view.")] = False,
    web: Annotated[bool, option("--web", "Serve the web view as well, and print its address.")] = False,
    data: Annotated[
        Path | None,
        option(
            "--data DIR", "Where the server's data and the log are kept; `.streamworker/APP.dev` by default."
        ),
    ] = None,
    fresh: Annotated[
        bool, option("--fresh", "First delete the data, and the pipelines' checkpoints and tables.")
    ] = False,
    yes: Yes = False,
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Format.CONSOLE,
) -> None:
    """Run server, workers, Spark and live view together.

    The command starts an embedded server, and stops it at its end. The app uses this server even if
    it names another Redis, and so does PROGRAM. So do other commands in this folder meanwhile, unless
    STREAMWORKER_REDIS_URL is set; and a program that you start yourself, unless that or its app names
    another. `q` or Ctrl-C stops everything: workers drain first. A second Ctrl-C ends all at once.

    The data stays for the next run, as Spark's checkpoints and tables do.

    \b
    Examples:
      streamworker dev shop:app
      streamworker dev shop:app --workers 5 --no-spark --web
      streamworker dev shop:app -- python feed.py
      streamworker dev shop:app --fresh
    """
    from streamworker.dev.server import EmbeddedServer

    if running := find():
        raise ConfigurationError(
            f"`streamworker dev` already runs in this folder (process {running[0]}).",
            remedy="Other commands in this folder use its server. For a second one, use another folder.",
        )
    selection = resolve_processors(app)
    found = selection.app
    if fresh or not no_spark:
        with_pipelines(found)
    folder = data or Path(CONTROL_FOLDER) / f"{found.name}.dev"
    if fresh:
        _clear(found, folder, yes=yes)
    elif found.registry.pipelines and not no_spark:
        _check_checkpoints(found, folder)
    with contextlib.ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).unlink(missing_ok=True)
        server = stack.enter_context(EmbeddedServer(data_dir=folder / "redis"))
        stack.enter_context(announced(server.url))
        # This process's live view. The children find it in their environment.
        found.settings = replace(found.settings, redis_url=server.url)
        options = ["--log-level", log_level, "--log-format", log_format]
        raise typer.Exit(
            _run_all(
                app,
                selection,
                server,
                options,
                program or [],
                workers=workers,
                spark=bool(found.registry.pipelines) and not no_spark,
                web=web,
                log_file=folder / LOG if sys.stdout.isatty() and not no_tui else None,
            )
        )


def _run_all(
    path: str,
    selection: Selection,
    server: Ends,
    options: list[str],
    program: list[str],
    *,
    workers: int,
    spark: bool,
    web: bool,
    log_file: Path | None,
) -> int:
    with Children(log_file=log_file) as children, two_stages(children.stop, children.force):
        children.watch("the server", server)
        for number in range(1, workers + 1):
            children.start(f"worker w{number}", ["run", path, "--name", f"w{number}", *options])
        if spark:
            children.start("spark", ["spark", path, *options], is_worker=False)
        shown: list[str] = []
        if web:
            from streamworker.dev.server import free_port

            port = free_port()
            children.start("web", ["web", path, "--port", str(port)], is_worker=False)
            shown = [f"The web view: {url_of(LOOPBACK, port)}"]
        if program:
            children.start(shlex.join(program), program, is_worker=False, runs=())
        say(f"Started {counted(workers, 'worker')}{' and Spark' if spark else ''}.", *shown, error=True)
        if log_file is not None:
            show(
                selection,
                stopped=lambda: not children.running,
                notices=lambda: [*shown, *children.failures()],
            )
            if children.running:
                say("Stopping: workers finish their batches.", error=True)
            children.stop()
        code = children.wait()
        if children.failed and log_file is not None:
            say(*printable_lines(log_file.read_text("utf-8", "replace"))[-TAIL_LINES:], error=True)
        return code


def _check_checkpoints(app: App, folder: Path) -> None:
    """Refuse to begin with an empty server where pipelines have read other data."""
    if (folder / "redis").is_dir():
        return
    for spec in app.registry.pipelines.values():
        if Path(local(checkpoint_of(spec)), "offsets").is_dir():
            raise ConfigurationError(
                f"Pipeline {spec.name!r} has read other data: {folder} holds none, and the pipeline has a "
                f"checkpoint directory: {checkpoint_of(spec)}.",
                remedy="`streamworker dev --fresh` deletes the checkpoints and tables of the pipelines, and "
                "begins anew. Or name the folder of the data with --data, or leave Spark out by --no-spark.",
            )


def _clear(app: App, folder: Path, *, yes: bool) -> None:
    """Delete the data of the last run, with the checkpoints and tables that were made of it."""
    paths = {folder}
    for spec in app.registry.pipelines.values():
        paths |= {Path(local(path)) for path in (checkpoint_of(spec), spec.path) if path and is_local(path)}
    present = sorted(path for path in paths if path.exists())
    if not present:
        return
    say("This deletes:", *(f"  {path}" for path in present))
    if not yes:
        confirm("Go on?")
    for path in present:
        shutil.rmtree(path)


def demo(
    json: Annotated[bool, option("--json", "Print the figures as one JSON object, last.")] = False,
    keep: Annotated[
        bool, option("--keep", "Leave everything running, to look at it with top; Ctrl-C ends it.")
    ] = False,
    cluster: Annotated[
        bool, option("--cluster", "Use a Redis Cluster of three primaries with a replica each.")
    ] = False,
    web: Annotated[bool, option("--web", "Serve the web view as well, and print its address.")] = False,
    grow: Annotated[bool, option("--grow", "Give the stream more partitions while flights flow.")] = False,
    archive: Annotated[
        bool, option("--archive", "Archive the flights in a folder, and read them there by DuckDB.")
    ] = False,
) -> None:
    """Run the whole system on real data, and check it.

    336,776 flights go through workers that join, leave and are killed, into Spark tables, which are
    then compared with the data set. The command starts its own server and needs Java, or the extra
    `java`.

    \b
    Examples:
      streamworker demo
      streamworker demo --cluster
      streamworker demo --grow
      streamworker demo --archive
    """
    from streamworker.dev.demo import run_demo

    raise typer.Exit(
        run_demo(json_output=json, keep=keep, cluster=cluster, web=web, grow=grow, archive=archive)
    )
