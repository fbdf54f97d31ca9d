"""``streamworker send``: sends records from a file or another program to a stream."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from streamworker.cli.data.lines import Lines, OnError
from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.options import argument, option
from streamworker.cli.output import progress_bar, say
from streamworker.cli.support import connected, give_up, halves_told, run_async
from streamworker.core.words import counted
from streamworker.declaring.stream import Stream, StreamApp
from streamworker.importing import resolve_stream

if TYPE_CHECKING:
    import pyarrow as pa

READ_BYTES = 256 * 1024
TABLES = (".parquet", ".arrow", ".feather", ".ipc")
"""Endings of files that hold columns."""
ROWS = 250_000
"""Rows of a table that are in memory at a time; one step of the progress bar."""


def send(
    stream: Annotated[str, argument("STREAM", "MODULE:NAME of the stream, such as shop:orders; or its App.")],
    file: Annotated[
        str,
        argument(
            "FILE",
            "JSON lines, one record a line, or - for them on stdin; or a .csv, .parquet or .arrow file.",
        ),
    ],
    name: Annotated[str | None, option("--stream NAME", "The stream, if STREAM is an App.")] = None,
    on_error: Annotated[
        OnError, option("--on-error", "Stop at a bad line, or report it and go on.")
    ] = OnError.STOP,
) -> None:
    """Send records from a file or a pipe.

    Each line is one JSON object, which is checked against the stream's record type. Records are
    sent in order. While a partition is full the command waits. Ctrl-C ends the input: what came
    before it is sent and counted.

    Files are UTF-8. The first line of a .csv file names the fields; an empty value counts as not
    given, and one in quotes may have line breaks. A stream with codec="arrow" gets those of a
    .parquet or .arrow file as columns.

    \b
    Examples:
      streamworker send shop:orders orders.jsonl
      zcat orders.jsonl.gz | streamworker send shop:orders -
      streamworker send shop:app orders.jsonl --stream orders --on-error skip
      streamworker send shop:orders orders.parquet
    """
    target = resolve_stream(stream, name)
    is_csv = file.endswith(".csv")
    record = target.spec.record
    names = tuple(each.wire_name for each in record.declared)
    lines = Lines(record.decoder("fields" if is_csv else "json"), on_error, is_csv, names)
    started = time.monotonic()
    if file.endswith(TABLES):
        if on_error is OnError.SKIP:
            raise typer.BadParameter(
                "A table is sent in parts, so single rows cannot be skipped.", param_hint="--on-error"
            )
        sent = run_async(_send_table, target, Path(file))
    elif file == "-":
        sent = run_async(_send_lines, target, lines, sys.stdin.buffer, None)
    else:
        try:
            source = Path(file).open("rb")  # noqa: SIM115  (closed below)
        except OSError as error:
            raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None
        with source:
            sent = run_async(_send_lines, target, lines, source, os.fstat(source.fileno()).st_size)
    seconds = time.monotonic() - started
    say(f"Sent {counted(sent, 'record')} to {target.app.name}:{target.name} in {seconds:.1f} s.")
    if lines.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if lines.bad:
        if not lines.ended:
            give_up(f"Bad lines: {lines.bad:,} were left out.")
        to = f"{quote(stream)} -" + (f" --stream {quote(name)}" if name else "")
        give_up(
            f"Stopped at line {lines.first}, and sent nothing from it on.",
            _how_to_go_on(to, file, lines),
        )


def _how_to_go_on(to: str, file: str, lines: "Lines") -> str:
    """Return what to do after a bad line; the whole file would send twice what was before it."""
    if lines.is_csv or file == "-":
        header = ", after the line that names the fields" if lines.is_csv else ""
        return f"Correct it, and send only what begins with it{header}. --on-error skip leaves out bad lines."
    rest = f"tail -n +{lines.first} {quote(file)} | streamworker send {to}"
    return f"To go on once it is corrected: {rest}. There, --on-error skip leaves out bad lines."


async def _answers(app: StreamApp) -> None:
    """Refuse a wrong URL: a producer would wait for the server as for one that went away."""
    async with connected(app) as backend:
        await backend.time_ms()


async def _send_lines(stream: Stream[Any], lines: Lines, source: BinaryIO, size: int | None) -> int:
    with progress_bar(size is not None and size > 0, note="records") as progress:
        task = progress.add_task("sending", total=size, note="0")

        async def records() -> AsyncIterator[Any]:
            async for chunk, length in _chunks(source, lines):
                for record in lines.records(chunk):
                    yield record
                progress.update(task, advance=length, note=f"{lines.number:,}")
                if lines.ended:
                    return
            for record in lines.records([], are_last=True):
                yield record

        await _answers(stream.app)
        async with stream.app:
            return await stream.send_many(records())


async def _chunks(source: BinaryIO, lines: Lines) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield whole lines as they arrive, and the bytes read. A thread reads, so the event loop does not block.

    Lines from a pipe are yielded at once, so that a line does not wait until the program writes more. The
    thread does not wait for them, because nothing ends a thread that does.
    """
    import anyio

    read = getattr(source, "read1", source.read)
    rest = b""
    while True:
        try:
            with contextlib.suppress(OSError):  # A file, which never waits, cannot be waited for.
                await anyio.wait_readable(source)
            chunk = await anyio.to_thread.run_sync(read, READ_BYTES, abandon_on_cancel=True)
        except asyncio.CancelledError:
            # The first Ctrl-C cancels this task: the records before it are still sent. The second ends all.
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            lines.interrupted = True
            return
        if not chunk:
            break
        *whole, rest = (rest + chunk).split(b"\n")
        yield whole, len(chunk)
    if rest:
        yield [rest], 0


async def _send_table(stream: Stream[Any], path: Path) -> int:
    """Send the rows of a file in order, and return their number."""
    import pyarrow as pa

    record, sent = stream.spec.record, 0
    try:
        total, parts = _open(path)
    except (OSError, pa.ArrowException) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="FILE") from None
    done = halves_told(
        lambda: f"Sent {counted(sent, 'record')} of {path}, from its beginning." if sent else ""
    )
    with done, progress_bar(total > 0, note="rows") as progress:
        task = progress.add_task("sending", total=total, note="0")
        await _answers(stream.app)
        async with stream.app:
            for part in parts:
                if stream.spec.codec == "arrow":
                    sent += await stream.send_table(part)
                else:
                    for batch in part.to_batches():
                        sent += await stream.send_many(record.from_arrow(record.fit_arrow(batch)))
                progress.update(task, advance=part.num_rows, note=f"{sent:,}")
    return sent


def _open(path: Path) -> "tuple[int, Iterator[pa.Table]]":
    import pyarrow as pa

    if path.suffix == ".parquet":
        from pyarrow import parquet

        file = parquet.ParquetFile(path)
        batches = file.iter_batches(batch_size=ROWS)
        return file.metadata.num_rows, (pa.Table.from_batches([batch]) for batch in batches)
    mapped = pa.memory_map(str(path))
    try:
        table = pa.ipc.open_file(mapped).read_all()
    except pa.ArrowInvalid:  # Not in the Arrow file format: try the Arrow stream format.
        mapped.seek(0)
        table = pa.ipc.open_stream(mapped).read_all()
    return table.num_rows, (table.slice(start, ROWS) for start in range(0, table.num_rows, ROWS))
