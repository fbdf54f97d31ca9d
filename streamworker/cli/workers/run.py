"""``streamworker run``: runs a worker."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.options import AppPath, Processors, option
from streamworker.cli.top import show
from streamworker.cli.workers.children import Children, two_stages
from streamworker.cli.workers.reload import run_reloading
from streamworker.errors import ConfigurationError
from streamworker.importing import resolve_processors

if TYPE_CHECKING:
    from streamworker.app import App
    from streamworker.runtime.watch.health import Health

Loop = StrEnum("Loop", ["AUTO", "ASYNCIO", "UVLOOP"])
Level = StrEnum("Level", ["DEBUG", "INFO", "WARNING", "ERROR"])
Format = StrEnum("Format", ["AUTO", "CONSOLE", "JSON"])

LogLevel = Annotated[Level, option("--log-level", "Least level that is logged.")]
LogFormat = Annotated[
    Format,
    option("--log-format", "Log lines for people or for programs; auto is JSON where stderr is no terminal."),
]


def run(
    context: typer.Context,
    app: AppPath,
    processor: Processors = None,
    name: Annotated[
        str | None, option("--name NAME", "The worker's name in status and top; random by default.")
    ] = None,
    static_id: Annotated[
        str | None, option("--static-id ID", "Id that keeps the worker's seat in a restart; see hold_ms.")
    ] = None,
    tui: Annotated[bool, option("--tui", "Show the live view; log lines go to --log-file.")] = False,
    spark: Annotated[bool, option("--spark", "Run the app's Spark pipelines beside it.")] = False,
    metrics_port: Annotated[
        str | None,
        option("--metrics-port PORT", "Serve this worker's own metrics here, for all; or HOST:PORT."),
    ] = None,
    health_port: Annotated[
        str | None,
        option("--health-port PORT", "Probes and /metrics at this port of loopback; or HOST:PORT."),
    ] = None,
    reload: Annotated[
        bool, option("--reload", "Start anew when a Python file in this folder changes.")
    ] = False,
    loop: Annotated[Loop, option("--loop", "Event loop; auto takes uvloop if installed.")] = Loop.AUTO,
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Format.CONSOLE,
    log_file: Annotated[
        Path, option("--log-file FILE", "Where log lines go while --tui has the terminal.")
    ] = Path("streamworker.log"),
) -> None:
    """Run a worker until a signal stops it.

    At the first SIGTERM or Ctrl-C it finishes the batches under way, commits and leaves; a second
    one ends it at once with code 5.

    \b
    Examples:
      streamworker run shop:app
      streamworker run shop:app --processor price --name price-1
      streamworker run shop:app --tui --spark
    """
    from streamworker.cli import logs

    if tui or spark or reload:
        if reload and (tui or spark):
            raise typer.BadParameter("--reload cannot be combined with --tui or --spark.")
        arguments = _arguments(context)
        if reload:
            raise typer.Exit(run_reloading(arguments))
        logging = ["--log-level", log_level, "--log-format", log_format]
        pipelines = ["spark", app, *logging] if spark else None
        raise typer.Exit(_with_children(app, processor, arguments, pipelines, log_file if tui else None))
    logs.configure(log_level, log_format)
    from streamworker.runtime.watch.stages import end_despite_threads
    from streamworker.runtime.worker import run_worker

    selection = resolve_processors(app, processor)
    code = run_worker(
        selection.app,
        processors=[spec.called for spec in selection.processors],
        name=name,
        static_id=static_id,
        health=_serve(selection.app, metrics_port, health_port),
        use_uvloop=_use_uvloop(loop),
    )
    end_despite_threads(code)
    raise typer.Exit(code)


def _serve(app: "App", metrics_port: str | None, health_port: str | None) -> "Health":
    """Measure, and serve what these options ask for; return what the worker keeps current."""
    from streamworker.runtime.observing import meter_provider
    from streamworker.runtime.watch.health import Health

    health = Health()
    if metrics_port is None and health_port is None and meter_provider() is None:
        return health
    from prometheus_client import (
        CollectorRegistry,
        PlatformCollector,
        ProcessCollector,
        disable_created_metrics,
    )

    from streamworker.cli.workers.probes import metrics_page, probes
    from streamworker.cli.workers.serving import EVERY_ADDRESS, serve
    from streamworker.metrics import measure

    disable_created_metrics()  # type: ignore[no-untyped-call]  # They would double the series.
    registry = CollectorRegistry()
    for of_process in (ProcessCollector, PlatformCollector):
        of_process(registry=registry)
    measure(app, registry)
    page = metrics_page(registry)
    if metrics_port is not None:
        serve(metrics_port, {"/": page, "/metrics": page}, "--metrics-port", host=EVERY_ADDRESS)
    if health_port is not None:
        serve(health_port, {**probes(health), "/metrics": page}, "--health-port")
    return health


def _arguments(context: typer.Context) -> list[str]:
    """Return the arguments of the worker process that --tui, --spark and --reload start: all others."""
    arguments = ["run", str(context.params["app"])]
    for parameter in context.command.params:
        if parameter.name in ("app", "tui", "spark", "reload", "log_file"):
            continue
        value = context.params[str(parameter.name)]
        for each in value if isinstance(value, list | tuple) else [value]:
            arguments += [parameter.opts[0], str(each)] if each is not None else []
    return arguments


def _with_children(
    path: str,
    processors: list[str] | None,
    worker: list[str],
    pipelines: list[str] | None,
    log_file: Path | None,
) -> int:
    """Run the worker, and Spark, as child processes, and the live view in this process.

    The view is not in the worker's process: a processor that computes for a minute would stop the
    view too, and a forced end would not restore the terminal.
    """
    selection = resolve_processors(path, processors)
    if pipelines is not None and not (selection.app.registry.pipelines or selection.app.include_spark):
        raise ConfigurationError(
            f"App {selection.app.name!r} has no pipeline for --spark to run.",
            remedy="Declare one: @app.pipeline(processor, path=...).",
        )
    with Children(log_file=log_file) as children, two_stages(children.stop, children.force):
        children.start("worker", worker)
        if pipelines is not None:
            children.start("spark", pipelines, is_worker=False)
        if log_file is not None:
            show(selection, stopped=lambda: not children.running)
            children.stop()
        return children.wait()


def _use_uvloop(loop: Loop) -> bool:
    from importlib.util import find_spec

    installed = find_spec("uvloop") is not None
    if loop is Loop.UVLOOP and not installed:
        raise ConfigurationError("uvloop is not installed.", remedy="Run: pip install 'streamworker[uvloop]'")
    return installed and loop is not Loop.ASYNCIO
