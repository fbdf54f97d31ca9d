"""``streamworker spark``: runs the app's pipelines."""

import os
import signal
import threading
from typing import Annotated

import typer

from streamworker.app import App
from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.options import AppPath, option
from streamworker.cli.output import console, say
from streamworker.cli.requests import FAILING
from streamworker.cli.support import ask, give_up, group_keys, take_all
from streamworker.cli.workers.children import two_stages
from streamworker.cli.workers.run import Format, Level, LogFormat, LogLevel
from streamworker.errors import BackendRefused
from streamworker.importing import Selection, resolve_app, with_pipelines
from streamworker.redisio.group import readers
from streamworker.redisio.wire.client import Backend
from streamworker.tui.figures import held_up


def spark(
    app: AppPath,
    pipeline: Annotated[str | None, option("--pipeline NAME", "Only this pipeline.")] = None,
    master: Annotated[
        str | None, option("--master URL", "Spark master, such as local[4] or spark://host:7077.")
    ] = None,
    remote: Annotated[
        str | None, option("--remote URL", "Spark Connect server, such as sc://host:15002.")
    ] = None,
    conf: Annotated[
        list[str] | None, option("--conf KEY=VALUE", "Spark setting, such as spark.executor.memory=2g.")
    ] = None,
    packages: Annotated[
        str | None, option("--packages NAMES", "Maven coordinates of jars, separated by commas.")
    ] = None,
    forget: Annotated[
        str | None,
        option(
            "--forget NAME",
            "Run nothing; delete the position of a pipeline or reader that will not come back.",
        ),
    ] = None,
    once: Annotated[bool, option("--once", "Process the rows that are there now, then end.")] = False,
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Format.CONSOLE,
) -> None:
    """Run the app's pipelines on Spark.

    At the first signal each query finishes its micro-batch, a second one ends the process at once.
    A restart goes on from Spark's checkpoint directory.

    Acked logs keep the rows that a reader has not read. Forget a reader that will not come back:
    otherwise the logs fill up and commits wait.

    \b
    Examples:
      streamworker spark shop:app
      streamworker spark shop:app --pipeline revenue --once
      streamworker spark shop:app --master spark://host:7077 --conf spark.executor.memory=2g
      streamworker spark shop:app --forget revenue
    """
    from streamworker.cli import logs
    from streamworker.spark.driver.pipelines import run_pipelines
    from streamworker.spark.driver.progress import PipelineProgress

    if master is not None and remote is not None:
        raise typer.BadParameter("Give either --master or --remote.")
    settings = _settings(conf, packages, remote)
    if forget is not None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # A command that was cut short does not end with 0.
        found = resolve_app(app)
        ask(found, _forget, found, forget)
        return
    logs.configure(log_level, log_format)
    found = with_pipelines(resolve_app(app))
    stop = threading.Event()
    # Spark takes some ten seconds to start; a terminal shows that until the first progress event.
    starting = console(error=True).status("Starting Spark")
    read: list[int] = []

    def progressed(progress: PipelineProgress) -> None:
        starting.stop()
        read.append(progress.rows)

    with two_stages(stop.set, lambda: os._exit(ExitCode.FORCED)), starting:
        code = run_pipelines(
            found,
            pipeline=pipeline,
            master=master,
            remote=remote,
            conf=settings,
            once=once,
            stop=stop,
            on_progress=progressed,
        )
    if once and code == ExitCode.OK:
        code = _told_why(found, pipeline, any(read))
    raise typer.Exit(code)


def _settings(conf: list[str] | None, packages: str | None, remote: str | None) -> dict[str, str]:
    settings = {}
    for text in conf or ():
        key, mark, value = text.partition("=")
        if not (mark and key.startswith("spark.")):
            raise typer.BadParameter(
                f"--conf {text!r} is no setting of Spark. Write --conf spark.name=value."
            )
        settings[key] = value
    if packages is not None:
        if remote is not None:
            raise typer.BadParameter("A Connect server has its own jars: start it with --packages.")
        settings["spark.jars.packages"] = packages
    return settings


def _told_why(app: App, pipeline: str | None, has_read: bool) -> int:
    """Say why a run over what is there read no more than it did; partitions that stand are a failure."""
    chosen = (spec for spec in app.registry.pipelines.values() if pipeline in (None, spec.name))
    read = {name for spec in chosen for name in spec.reads}
    selection = Selection(app, tuple(spec for spec in app.registry.processors.values() if spec.name in read))
    try:
        snapshots = take_all(selection)
    except BackendRefused as refused:  # The rights of a reader are enough to read, and not for this look.
        say(f"Whether partitions stand still is not known. {refused}", error=True)
        return ExitCode.OK
    standing = [
        f"Partition {view.partition} of {snapshot.processor} stands still, {view.state}: "
        f"{held_up(view, snapshot.taken_ms)}"
        for snapshot in snapshots
        for view in snapshot.partitions
        if view.state in FAILING or view.pause is not None
    ]
    if standing:
        say(*standing, "The pipelines have read the rows before. See: streamworker doctor", error=True)
        return ExitCode.FAILED
    if not has_read:
        say("There were no new rows: the pipelines have read all that was committed.")
    return ExitCode.OK


async def _forget(backend: Backend, app: App, name: str) -> None:
    """Remove a reader from every group of the app that has it."""
    known, done = set[str](), list[str]()
    for spec in app.registry.processors.values():
        keys = group_keys(spec)
        known |= (await readers.positions(backend, keys)).keys()
        if await readers.forget(backend, keys, name):
            done.append(spec.name)
    if not done:
        give_up(
            f"No processor of app {app.name!r} has a reader {name!r}.",
            f"Its readers: {', '.join(sorted(known)) or 'none'}.",
        )
    say(f"Forgot {name}: the acked logs of {', '.join(done)} keep no rows for it any more.")
