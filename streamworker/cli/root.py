"""All commands, in the order in which a new user needs them."""

import os
import sys
from typing import Annotated

import typer

from streamworker.cli import acl, graph, health, requests, status, timers, top
from streamworker.cli.archive import command as archive
from streamworker.cli.archive import erase
from streamworker.cli.data import dead, later, partitions, reset, schema, send, size, table, tail
from streamworker.cli.doctor import command as doctor
from streamworker.cli.doctor import repair
from streamworker.cli.output import say
from streamworker.cli.support import Commands
from streamworker.cli.workers import dev, exporter, run, spark, web
from streamworker.dev import rendezvous
from streamworker.variables import REDIS_URL_OVERRIDE, URL_VARIABLE

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # On a terminal rich draws the help; elsewhere it is plain text.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from streamworker import __version__

        say(f"streamworker {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Redis Streams as an ordered, partitioned, rebalanced event log, handed to Apache Spark."""
    if context.invoked_subcommand not in ("acl", "dev", "demo") and not context.obj:
        _use_running_dev()


def _use_running_dev() -> None:
    """Use the server of the ``dev`` that runs in this folder, unless a variable names one, and print that."""
    if not os.environ.keys() & {REDIS_URL_OVERRIDE, URL_VARIABLE} and (found := rendezvous.find()):
        rendezvous.export(found[1])
        say(f"Using the server of `streamworker dev` (process {found[0]}) in this folder.", error=True)


app.command()(dev.demo)
app.command()(dev.dev)
app.command()(run.run)
app.command()(spark.spark)
app.command()(send.send)
app.add_typer(later.app, name="later")
app.command()(tail.tail)
app.command()(tail.peek)
app.command()(top.top)
app.command()(web.web)
app.command()(status.status)
app.command()(health.wait)
app.command()(health.health)
app.command()(exporter.exporter)
app.command()(status.lag)
app.command()(graph.graph)
app.command()(size.size)
app.command()(status.history)
app.command()(requests.pause)
app.command()(requests.resume)
app.command()(requests.retry)
app.add_typer(timers.app, name="timers")
app.add_typer(dead.app, name="dead")
app.add_typer(table.app, name="table")
app.command()(reset.reset)
app.add_typer(archive.app, name="archive")
app.command()(erase.erase)
app.command()(partitions.partitions)
app.add_typer(schema.app, name="schema")
app.command()(doctor.doctor)
app.command()(repair.repair)
app.command()(acl.acl)
