"""Parquet and Arrow files for ``streamworker send``."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from streamworker.cli.support import connected, progress_bar

if TYPE_CHECKING:
    import pyarrow as pa

    from streamworker.app import Stream

SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc")
ROWS = 250_000
"""Rows of one part: what is in memory at a time, and one step of the progress bar."""


def is_table(file: str) -> bool:
    """Whether a file holds columns, judged by its name."""
    return file.endswith(SUFFIXES)


async def send_file(stream: "Stream[Any]", path: Path) -> int:
    """Send the rows of a file in order, and return their number.

    Raises
    ------
    RecordError
        If a column or a row does not fit the stream's record type.
    """
    import pyarrow as pa

    record, sent = stream.spec.record, 0
    try:
        total, parts = _open(path)
    except (OSError, pa.ArrowException) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="FILE") from None
    with progress_bar(total > 0, note="rows") as progress:
        task = progress.add_task("sending", total=total, note="0")
        # The producer waits for a server that goes away later. One that does not answer now is a wrong URL.
        async with connected(stream.app) as backend:
            await backend.time_ms()
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
