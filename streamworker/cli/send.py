"""``streamworker send``: sends records from a file or another program to a stream."""

import os
import sys
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.send_table import is_table, send_file
from streamworker.cli.support import connected, progress_bar, run_async, say

if TYPE_CHECKING:
    from streamworker.app import Stream

READ_BYTES = 256 * 1024


class OnError(StrEnum):
    """What to do at a line that is not a record of the stream."""

    STOP = "stop"
    SKIP = "skip"


def send(
    stream: Annotated[
        str,
        typer.Argument(metavar="STREAM", help="MODULE:NAME of the stream, such as shop:orders; or its App."),
    ],
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="JSON lines, one record a line, or - for them on stdin; or a .parquet or .arrow file.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--stream", metavar="NAME", help="The stream, if STREAM is an App.")
    ] = None,
    on_error: Annotated[
        OnError, typer.Option("--on-error", help="Stop at a bad line, or report it and go on.")
    ] = OnError.STOP,
) -> None:
    """Send records from a file or a pipe.

    Each line is one JSON object. The command checks it against the stream's record type before it
    sends it. Records are sent in the order of the lines. When a partition is full because workers
    are behind, the command waits.

    The columns of a .parquet or .arrow file are the fields of the records. A stream with
    codec="arrow" gets them as columns, and other streams as records.

    \b
    Examples:
      streamworker send shop:orders orders.jsonl
      zcat orders.jsonl.gz | streamworker send shop:orders -
      streamworker send shop:app orders.jsonl --stream orders --on-error skip
      streamworker send shop:orders orders.parquet
    """
    from streamworker.importing import resolve_stream

    target = resolve_stream(stream, name)
    lines = Lines(target, on_error)
    started = time.monotonic()
    if is_table(file):
        if on_error is OnError.SKIP:
            raise typer.BadParameter(
                "A table is sent in parts, so single rows cannot be skipped.", param_hint="--on-error"
            )
        sent = run_async(send_file, target, Path(file))
    elif file == "-":
        sent = run_async(_send, target, lines, sys.stdin.buffer, None)
    else:
        try:
            source = Path(file).open("rb")  # noqa: SIM115  (closed below)
        except OSError as error:
            raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None
        with source:
            sent = run_async(_send, target, lines, source, os.fstat(source.fileno()).st_size)
    seconds = time.monotonic() - started
    say(f"Sent {sent:,} records to {target.app.name}:{target.name} in {seconds:.1f} s.")
    if lines.bad:
        rest = "nothing after it was sent" if on_error is OnError.STOP else f"{lines.bad:,} were left out"
        say(f"Bad lines: {rest}.", error=True)
        raise typer.Exit(ExitCode.FAILED)


@dataclass
class Lines:
    """Decodes lines to records, and prints the number of each bad line."""

    stream: "Stream[Any]"
    on_error: OnError
    bad: int = 0
    number: int = 0
    _decode: Any = field(init=False)

    def __post_init__(self) -> None:
        self._decode = self.stream.spec.record.decoder("json")

    @property
    def ended(self) -> bool:
        """Whether a bad line has ended the sending."""
        return self.bad > 0 and self.on_error is OnError.STOP

    def records(self, lines: Iterable[bytes]) -> list[Any]:
        """Return the records of these lines; with ``OnError.STOP``, those before the first bad line."""
        from streamworker.errors import RecordError
        from streamworker.records import PAYLOAD_FIELD

        found = []
        for line in lines:
            self.number += 1
            if not line.strip():
                continue
            try:
                found.append(self._decode({PAYLOAD_FIELD: line}))
            except RecordError as error:
                self.bad += 1
                say(f"Line {self.number}: {error.message}", error=True)
                if self.ended:
                    break
        return found


async def _send(stream: "Stream[Any]", lines: Lines, source: BinaryIO, size: int | None) -> int:
    with progress_bar(size is not None and size > 0, note="records") as progress:
        task = progress.add_task("sending", total=size, note="0")

        async def records() -> AsyncIterator[Any]:
            async for chunk, length in _chunks(source):
                for record in lines.records(chunk):
                    yield record
                progress.update(task, advance=length, note=f"{lines.number:,}")
                if lines.ended:
                    return

        # The producer waits for a server that goes away later. One that does not answer now is a wrong URL.
        async with connected(stream.app) as backend:
            await backend.time_ms()
        async with stream.app:
            return await stream.send_many(records())


async def _chunks(source: BinaryIO) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield whole lines as they arrive, and the bytes read. A thread reads, so the event loop does not block.

    Lines from a pipe are yielded at once, so that a line does not wait until the program writes more.
    """
    from anyio import to_thread

    read = getattr(source, "read1", source.read)
    rest = b""
    while chunk := await to_thread.run_sync(read, READ_BYTES, abandon_on_cancel=True):
        *whole, rest = (rest + chunk).split(b"\n")
        yield whole, len(chunk)
    if rest:
        yield [rest], 0
