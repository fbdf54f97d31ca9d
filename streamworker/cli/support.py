"""Shared by all commands: errors, connections and snapshots."""

import sys
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from traceback import format_exception
from typing import Any, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

from streamworker.cli.exit_codes import ExitCode, code_for
from streamworker.cli.output import say
from streamworker.core.data.placement import Placement
from streamworker.core.snapshot import GroupSnapshot
from streamworker.core.text import printable_lines
from streamworker.core.words import ranges
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.declaring.stream import StreamApp
from streamworker.errors import BackendUnavailable, StreamworkerError
from streamworker.importing import Selection
from streamworker.redisio.data.maps import check_made, follow_maps
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.snapshot import SILENT_AFTER_MS, take_snapshot
from streamworker.redisio.wire.client import CONNECTIONS, Backend
from streamworker.runtime.connecting import connected as opened

T = TypeVar("T")

LOOK_S = 1.0
"""Seconds between the two looks from which a command computes rates."""


class Commands(TyperGroup):
    """A command group that reports a ``StreamworkerError`` by a message and an exit code, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; report errors that the user can correct.

        The context's ``obj`` says whether the command only prints its help.
        """
        ctx.obj = not {"-h", "--help"}.isdisjoint(ctx.args)
        warnings.showwarning = lambda message, *_: say(f"Warning: {message}", error=True)
        sys.excepthook = lambda *error: say(*printable_lines("".join(format_exception(*error))), error=True)
        with errors_reported():
            return super().invoke(ctx)


@contextmanager
def errors_reported() -> Iterator[None]:
    """Report errors that the user can correct, and end the command with the exit code of the error."""
    try:
        yield
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


def give_up(*lines: str) -> NoReturn:
    """Write lines to stderr, and end the command with ``ExitCode.FAILED``."""
    say(*lines, error=True)
    raise typer.Exit(ExitCode.FAILED)


def run_async(function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Run an async function to its end on its own event loop.

    Log lines of level warning go to stderr: stdout holds only the command's output.
    """
    import anyio

    from streamworker.cli import logs

    logs.configure("warning")
    return anyio.run(function, *arguments)


def ask(
    app: StreamApp,
    function: Callable[..., Awaitable[T]],
    *arguments: Any,
    of: StreamSpec | Iterable[StreamSpec] = (),
) -> T:
    """Run an async function to its end, with a connection to the app's Redis as its first argument.

    ``of`` are the streams whose partitions the function goes through. If one has others than the app
    declares, it would take some of them for all; if it has grown, it has those of its map.
    """

    async def asking() -> T:
        async with connected(app) as backend:
            for each in (of,) if isinstance(of, StreamSpec) else of:
                await check_made(backend, StreamKeys(each.app, each.name), each.declared_partitions)
            with suppress(BackendUnavailable):  # The function finds the same, and may wait it out.
                await follow_maps(backend, placements(app))
            return await function(backend, *arguments)

    return run_async(asking)


@contextmanager
def halves_told(told: Callable[[], str]) -> Iterator[None]:
    """Say what is done already if an error or Ctrl-C ends the block before all is; of nothing, nothing."""
    is_whole = False
    try:
        yield
        is_whole = True
    finally:
        if not is_whole and (line := told()):
            say(line, error=True)


def connected(app: StreamApp) -> Backend:
    """Open a connection to the app's Redis for the calls of a command."""
    return opened(app.settings, f"{app.name}:cli", CONNECTIONS)


def placements(app: StreamApp) -> list[tuple[StreamKeys, Placement]]:
    """Return what says which partitions the streams of an app have, for ``follow_maps``."""
    specs = [stream.spec for stream in app._streams.values()]  # noqa: SLF001 - of our own kind
    return [(StreamKeys(spec.app, spec.name), spec.placement) for spec in specs]


def wanted_partitions(stream: StreamSpec, given: Iterable[int] | None, hint: str) -> list[int]:
    """Return the partitions that a command was given, in order, or all; refuse those that are not there."""
    wanted = sorted(set(given or stream.placement.all))
    check_partitions(stream, wanted, hint)
    return wanted


def check_partitions(stream: StreamSpec, wanted: Iterable[int], hint: str) -> None:
    """Refuse partitions that the stream does not have."""
    if wrong := [p for p in wanted if not 0 <= p < stream.placement.total]:
        there = f"{stream.name} has partitions 0 to {stream.placement.total - 1}"
        raise typer.BadParameter(f"{there}, and not {ranges(wrong)}.", param_hint=hint)


def group_keys(spec: ProcessorSpec) -> GroupKeys:
    """Return the keys of a processor's group."""
    return GroupKeys(spec.stream.app, spec.stream.name, spec.name)


async def take(
    backend: Backend, spec: ProcessorSpec, silent_after_ms: int = SILENT_AFTER_MS
) -> GroupSnapshot:
    """Take the snapshot of one processor's group, with its tables."""
    stream, tables = spec.stream, spec.lifetimes
    return await take_snapshot(
        backend, stream.app, stream.name, spec.name, silent_after_ms=silent_after_ms, tables=tables
    )


def take_all(selection: Selection) -> list[GroupSnapshot]:
    """Take a snapshot of each processor's group, on a connection of its own."""

    async def taking(backend: Backend) -> list[GroupSnapshot]:
        return [await take(backend, spec) for spec in selection.groups]

    return ask(selection.app, taking)
