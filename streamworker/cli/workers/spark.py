"""``streamworker spark``: runs the app's pipelines."""

import os
import signal
import threading
from collections.abc import Mapping
from typing import Annotated

import typer

from streamworker.app import App
from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.options import AppPath, option
from streamworker.cli.output import console, say
from streamworker.cli.requests import FAILING
from streamworker.cli.support import ask, give_up, group_keys, placements, take_all
from streamworker.cli.workers.children import two_stages
from streamworker.cli.workers.run import Format, Level, LogFormat, LogLevel
from streamworker.core.snapshot import GroupSnapshot
from streamworker.core.words import counted
from streamworker.declaring.specs import PipelineSpec
from streamworker.errors import BackendRefused
from streamworker.importing import Selection, resolve_app, with_pipelines
from streamworker.redisio.group import readers
from streamworker.redisio.wire.client import Backend
from streamworker.spark.driver.checks import source_options
from streamworker.spark.driver.progress import PipelineProgress
from streamworker.tui.figures import held_up

Forget = Annotated[
    list[str] | None,
    option(
        "--forget NAME",
        "Run nothing; delete the position of a pipeline or reader that will not come back; may be "
        "given several times.",
    ),
]
ENDED = ("done", "failed")
"""States of a pipeline that ended by itself."""


def spark(
    app: AppPath,
    pipeline: Annotated[
        list[str] | None, option("--pipeline NAME", "Only this pipeline; may be given several times.")
    ] = None,
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
    forget: Forget = None,
    once: Annotated[
        bool,
        option("--once", "Process the rows that are there now, then end; with 1 if a signal ends it before."),
    ] = False,
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

    if master is not None and remote is not None:
        raise typer.BadParameter("Give either --master or --remote.")
    settings = _settings(conf, packages, remote)
    if forget:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # A command that was cut short does not end with 0.
        found = resolve_app(app)
        ask(found, _forget, found, forget)
        return
    logs.configure(log_level, log_format)
    found = with_pipelines(resolve_app(app))
    stop = threading.Event()
    # Spark takes some ten seconds to start; a terminal shows that until the first progress event.
    starting = console(error=True).status("Starting Spark")
    told: dict[str, PipelineProgress] = {}
    has_read = False

    def progressed(progress: PipelineProgress) -> None:
        nonlocal has_read
        starting.stop()
        told[progress.pipeline] = progress
        has_read = has_read or progress.rows > 0

    with two_stages(stop.set, lambda: os._exit(ExitCode.FORCED)), starting:
        code = run_pipelines(
            found,
            pipelines=pipeline or (),
            master=master,
            remote=remote,
            conf=settings,
            once=once,
            stop=stop,
            on_progress=progressed,
        )
    if once:
        code = _told_why(found, pipeline, told, has_read=has_read)
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


def _told_why(
    app: App, names: list[str] | None, told: Mapping[str, PipelineProgress], *, has_read: bool
) -> int:
    """Say why a run over what is there read no more than it did, by what each pipeline said last.

    That no rows came proves nothing: a pipeline that was stopped, or has failed, has not looked at all of
    them. Partitions that stand are a failure, too.
    """
    chosen = [spec for spec in app.registry.pipelines.values() if not names or spec.name in names]
    ends = {spec.name: told[spec.name].state if spec.name in told else "stopped" for spec in chosen}
    read = {name for spec in chosen for name in spec.reads}
    selection = Selection(app, tuple(spec for spec in app.registry.processors.values() if spec.name in read))
    try:
        snapshots = {each.processor: each for each in take_all(selection)}
    except BackendRefused as refused:  # The rights of a reader are enough to read, and not for this look.
        snapshots = {}
        say(f"Whether partitions stand still is not known. {refused}", error=True)
    say(*(line for each in snapshots.values() for line in each.unknown), error=True)
    for spec in chosen:
        if ends[spec.name] not in ENDED:
            waiting = _waiting(spec, told.get(spec.name), snapshots)
            say(f"Pipeline {spec.name} was stopped before it had read all: {waiting}.", error=True)
    standing = [
        f"Partition {view.partition} of {snapshot.processor} stands still, {view.state}: "
        f"{held_up(view, snapshot.taken_ms)}"
        for snapshot in snapshots.values()
        for view in snapshot.partitions
        if view.state in FAILING or view.pause is not None
    ]
    if standing:
        say(*standing, "The pipelines do not read past these. See: streamworker doctor", error=True)
    if standing or set(ends.values()) != {"done"}:
        return ExitCode.FAILED
    if not has_read:
        say("There were no new rows: the pipelines have read all that was committed.")
        for snapshot in snapshots.values():
            if snapshot.lag:
                waits = counted(snapshot.lag, "record waits", "records wait")
                say(f"{waits} for {snapshot.processor}, without rows yet: see `streamworker status`.")
    return ExitCode.OK


def _waiting(
    spec: PipelineSpec, last: PipelineProgress | None, snapshots: Mapping[str, GroupSnapshot]
) -> str:
    """Return how many rows a pipeline has left, by what it said last, or by its readers' positions in Redis.

    A position in Redis may be one micro-batch behind what the pipeline has written.
    """
    views = [snapshots[each] for each in spec.reads if each in snapshots]
    if len(views) < len(spec.reads) or any(view.unknown for view in views):
        return "how many rows wait is not known"
    committed = sum(part.rows for view in views for part in view.all_partitions)
    if last is not None and last.positions:
        return counted(max(0, committed - sum(last.positions.values())), "row") + " wait"
    readers = {source_options(spec, each)["reader"] for each in spec.processors}
    known = [reader for view in views for reader in view.readers if reader.name in readers]
    read = sum(sum(reader.positions.values()) for reader in known)
    return f"up to {counted(max(0, committed - read), 'row')} wait"


async def _forget(backend: Backend, app: App, names: list[str]) -> None:
    """Remove readers from every group of the app that has them; none if a name is unknown."""
    held = {
        spec.name: (await readers.positions(backend, group_keys(spec))).keys()
        for spec in app.registry.processors.values()
    }
    known = set[str]().union(*held.values())
    for name in names:
        if name not in known:
            give_up(
                f"No processor of app {app.name!r} has a reader {name!r}.",
                f"Its readers: {', '.join(sorted(known)) or 'none'}.",
            )
    for name in names:
        of = [spec for spec in app.registry.processors.values() if name in held[spec.name]]
        for spec in of:
            await readers.forget(backend, group_keys(spec), name)
        await readers.forget_marks(backend, placements(app), name)
        logs = ", ".join(spec.name for spec in of)
        say(f"Forgot {name}: the acked logs of {logs} keep no rows for it, unless it reads again.")
