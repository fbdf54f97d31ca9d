"""What commands print: lines, tables, JSON and progress."""

import sys
from collections.abc import Iterable, Sequence
from errno import EPIPE
from typing import TYPE_CHECKING

import msgspec
import typer

from streamworker.core.text import printable
from streamworker.errors import StreamworkerError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


WRAPPED_OVER = 30
"""Columns whose cells have more characters wrap."""


def say(*lines: str, error: bool = False) -> None:
    """Print lines without markup or wrapping. Control characters are escaped, so each stays one line.

    Where stdout takes none, as its disk is full, the command says so on stderr and fails.
    """
    for line in lines:
        try:
            typer.echo(printable(line), err=error)
        except OSError as problem:
            if error or problem.errno == EPIPE:  # Who reads a pipe may stop; then there is nothing to say.
                raise
            untold = f" It was to print: {line}" if len(lines) == 1 else ""
            raise StreamworkerError(
                f"Standard output cannot be written: {problem.strerror}.",
                remedy=f"What the command has changed stands.{untold}",
            ) from None


def confirm(question: str) -> None:
    """Ask on the terminal, in one line like those of ``say``; end the command unless the user agrees."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("There is no terminal to ask at: give --yes.", param_hint="--yes")
    typer.confirm(printable(question), abort=True)


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
    """Print a table: drawn on a terminal where it fits, else as aligned columns. Numbers are to the right.

    Only columns of longer texts wrap.
    """
    texts = [["" if value is None else printable(str(value)) for value in row] for row in rows]
    right = [
        bool(rows) and all(isinstance(row[at], int | float) or row[at] is None for row in rows)
        for at in range(len(columns))
    ]
    widths = [max(len(name), *(len(row[at]) for row in texts), 0) for at, name in enumerate(columns)]
    needed = sum(min(width, WRAPPED_OVER) + 3 for width in widths)
    if sys.stdout.isatty() and needed <= console().width:
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        drawn = Table(box=box.SIMPLE_HEAD)
        for name, is_right, width in zip(columns, right, widths, strict=True):
            drawn.add_column(
                name, justify="right" if is_right else "left", no_wrap=width <= WRAPPED_OVER, overflow="fold"
            )
        for row in texts:
            drawn.add_row(*map(escape, row))
        console().print(drawn)
        return
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
