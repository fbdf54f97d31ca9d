"""Shared by all commands: arguments, output, errors and connections."""

import sys
import warnings
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from traceback import format_exception
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer
from typer.core import TyperGroup

from streamworker.cli.exit_codes import ExitCode, code_for
from streamworker.core.snapshot import GroupSnapshot
from streamworker.core.text import printable, printable_lines
from streamworker.errors import StreamworkerError
from streamworker.importing import Selection, resolve_processors
from streamworker.processors import ProcessorSpec
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import CONNECTIONS, Backend
from streamworker.runtime.connecting import connected as opened
from streamworker.stream import StreamApp

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

T = TypeVar("T")

LOOK_S = 1.0
"""Seconds between the two looks from which a command computes rates."""

AppPath = Annotated[str, typer.Argument(metavar="APP", help="MODULE:ATTRIBUTE of the App, such as shop:app.")]
GroupPath = Annotated[
    str,
    typer.Argument(metavar="APP|PROCESSOR", help="MODULE:ATTRIBUTE of the App, or of one of its processors."),
]
ProcessorPath = Annotated[
    str,
    typer.Argument(
        metavar="PROCESSOR", help="MODULE:NAME of the processor, such as shop:price; or an App that has one."
    ),
]
Processors = Annotated[
    list[str] | None,
    typer.Option(
        "--processor", "-p", metavar="NAME", help="Only this processor; may be given several times."
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most this many.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class Commands(TyperGroup):
    """A command group that reports a ``StreamworkerError`` by a message and an exit code, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; report errors that the user can correct."""
        warnings.showwarning = lambda message, *_: say(f"Warning: {message}", error=True)
        sys.excepthook = lambda *error: say(*printable_lines("".join(format_exception(*error))), error=True)
        try:
            return super().invoke(ctx)
        except StreamworkerError as error:
            report(error)
            raise typer.Exit(code_for(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def report(error: StreamworkerError) -> None:
    """Write an error to stderr: the message, the notes, then the remedy."""
    say(f"Error: {error.message}", error=True)
    for note in getattr(error, "__notes__", ()):
        say(*printable_lines(note), error=True)
    if error.remedy:
        say(error.remedy, error=True)


def say(*lines: str, error: bool = False) -> None:
    """Print lines without markup or wrapping. Control characters are escaped, so each stays one line."""
    for line in lines:
        typer.echo(printable(line), err=error)


def confirm(question: str) -> None:
    """Ask on the terminal, in one line like those of ``say``; end the command unless the user agrees."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("There is no terminal to ask at: give --yes.", param_hint="--yes")
    typer.confirm(printable(question), abort=True)


def local_time(ms: int, timespec: str = "seconds") -> str:
    """Write a time of the server in this machine's time zone."""
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec=timespec)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    say(*msgspec.json.format(msgspec.json.encode(value), indent=2).decode().split("\n"))


def console(*, error: bool = False) -> "Console":
    """Return rich's console for stdout or stderr; it prints plain text if that is not a terminal."""
    from rich.console import Console

    return Console(stderr=error, highlight=False, soft_wrap=False)


def print_found(
    as_json: bool,
    facts: Sequence[object],
    nothing: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
) -> None:
    """Print what a command lists: as JSON, as a table, or in words that there is none."""
    if as_json:
        print_json(facts)
    elif facts:
        print_table(columns, list(rows))
    else:
        say(nothing)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: drawn on a terminal, elsewhere as aligned columns. Numbers are to the right."""
    texts = [["" if value is None else printable(str(value)) for value in row] for row in rows]
    right = [
        bool(rows) and all(isinstance(row[at], int | float) or row[at] is None for row in rows)
        for at in range(len(columns))
    ]
    if sys.stdout.isatty():
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        drawn = Table(box=box.SIMPLE_HEAD)
        for name, is_right in zip(columns, right, strict=True):
            drawn.add_column(name, justify="right" if is_right else "left")
        for row in texts:
            drawn.add_row(*map(escape, row))
        console().print(drawn)
        return
    widths = [max(len(name), *(len(row[at]) for row in texts), 0) for at, name in enumerate(columns)]
    for row in [list(columns), *texts]:
        cells = [
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(row, widths, right, strict=True)
        ]
        say("  ".join(cells).rstrip())


def progress_bar(known: bool = True, note: str = "") -> "Progress":
    """Return a progress bar that is drawn only on a terminal; a spinner if the total is not known.

    ``note`` is the unit of the count that tasks give as their field of this name.
    """
    from rich import progress

    screen = console(error=True)
    columns: list[progress.ProgressColumn] = (
        [progress.BarColumn(), progress.TaskProgressColumn(), progress.TimeRemainingColumn()]
        if known
        else [progress.SpinnerColumn(), progress.TimeElapsedColumn()]
    )
    if note:
        columns.append(progress.TextColumn("{task.fields[note]} " + note))
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        *columns,
        console=screen,
        disable=not screen.is_terminal,
        transient=True,
    )


def run_async(function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Run an async function to its end on its own event loop.

    Log lines of level warning go to stderr: stdout holds only the command's output.
    """
    import anyio

    from streamworker.cli import logs

    logs.configure("warning")
    return anyio.run(function, *arguments)


def connected(app: StreamApp) -> Backend:
    """Open a connection to the app's Redis for the calls of a command."""
    return opened(app.settings, f"{app.name}:cli", CONNECTIONS)


def group_keys(spec: ProcessorSpec) -> GroupKeys:
    """Return the keys of a processor's group."""
    return GroupKeys(spec.stream.app, spec.stream.name, spec.name)


async def take(backend: Backend, spec: ProcessorSpec) -> GroupSnapshot:
    """Take the snapshot of one processor's group, with its tables."""
    tables = [table.name for table in spec.tables]
    return await take_snapshot(backend, spec.stream.app, spec.stream.name, spec.name, tables=tables)


async def take_all(selection: Selection) -> list[GroupSnapshot]:
    """Take a snapshot of each processor's group on one new connection."""
    async with connected(selection.app) as backend:
        return [await take(backend, spec) for spec in selection.processors]


def snapshots(path: str, processors: list[str] | None) -> list[GroupSnapshot]:
    """Take a snapshot of the group of each processor that the command line names."""
    return run_async(take_all, resolve_processors(path, processors))
