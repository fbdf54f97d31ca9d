"""``streamworker size``: computes the memory that an app needs at a rate, from what is there or a sample."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from streamworker.cli.data.lines import Lines, OnError
from streamworker.cli.options import AsJson, GroupPath, Processors, option
from streamworker.cli.output import print_json, print_table, say
from streamworker.cli.status import holdings_of
from streamworker.cli.support import ask, give_up, run_async, take
from streamworker.core.holdings import ID_BYTES, Holding, Holdings
from streamworker.core.snapshot import GroupSnapshot
from streamworker.core.words import counted
from streamworker.declaring.specs import StreamSpec
from streamworker.declaring.stream import StreamApp
from streamworker.importing import Selection, resolve_processors
from streamworker.redisio.data.retention import measure_stream
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import CONNECTIONS, Backend
from streamworker.runtime.connecting import connected
from streamworker.runtime.send.producer import Producer
from streamworker.tui.figures import memory

SAMPLED, SAMPLED_ALONE = 100_000, 5_000
"""Records, or calls of ``send``, for which a sample is repeated: the memory of an empty stream counts little
among them."""
HOUR_S = 3_600


@dataclass(frozen=True, slots=True)
class Line:
    """What one stream, log, state, table or window of ids needs."""

    kind: str
    name: str
    bytes_each: float | None
    """Memory of a record, row, key or id; None if none is there."""
    hour: float | None
    """Bytes that it gains in an hour in which nothing is dropped."""
    stays_at: float | None
    """Bytes at which it stays; None if only groups or readers end it, or if nothing tells."""
    why: str = ""
    """What ends it, if ``stays_at`` is None."""


def size(
    app: GroupPath,
    rate: Annotated[
        list[str], option("--rate N|STREAM=N", "Records a second of each stream, or of one; several times.")
    ],
    processor: Processors = None,
    sample: Annotated[
        Path | None, option("--sample FILE", "Records of a stream as JSON lines, in place of those in Redis.")
    ] = None,
    stream: Annotated[
        str | None, option("--stream NAME", "The stream of the sample, if the app has several.")
    ] = None,
    together: Annotated[
        bool, option("--together", "The sample is sent by send_many, and not one record at a time.")
    ] = False,
    archive: Annotated[
        bool, option("--archive", "What archives take instead: bytes and objects, a day and a month.")
    ] = False,
    prices: Annotated[
        str | None,
        option("--prices GB,PUTS", "With --archive: the price of a GB and month, and of a million puts."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Compute how much memory streams, acked logs, tables and ids need at a rate.

    The bytes of a record are those that it has in Redis now, or those that the records of a sample
    take in a server that the command starts for them (extra dev). A log has as many rows for each
    record as so far. What has a retention stays at a size; all else grows only while a group or
    reader stands still. With --archive the bytes of a record are those of the newest segments. The
    command writes nothing to the app's Redis.

    \b
    Examples:
      streamworker size shop:app --rate 1000
      streamworker size shop:app --rate orders=1000 --rate payments=50
      streamworker size shop:app --rate 1000 --sample orders.jsonl --stream orders
      streamworker size shop:app --rate 1000 --archive --prices 0.023,5
    """
    selection = resolve_processors(app, processor)
    specs = {each.name: each.spec for each in selection.app.registry.streams.values()}
    rates = _rates(rate, specs)
    if archive:
        _archives(selection, specs, rates, prices, as_json=json)
        return
    taken = _sample(selection.app, specs, sample, stream, together=together) if sample else None
    holdings, snapshots = ask(selection.app, _look, selection)
    if taken is not None:
        held = [
            taken if (each.kind, each.name) == (taken.kind, taken.name) else each for each in holdings.held
        ]
        holdings = replace(holdings, held=tuple(held))
    lines = [*_lines(holdings, snapshots, rates), *_ids(specs, rates)]
    if json:
        print_json([asdict(each) for each in lines])
        return
    rows = [
        (
            each.kind,
            each.name,
            None if each.bytes_each is None else round(each.bytes_each),
            memory(each.hour),
            each.why or memory(each.stays_at),
        )
        for each in lines
    ]
    print_table(("", "name", "bytes each", "an hour", "stays at"), rows)
    for each in holdings.held:
        if each.kind == "stream" and 0 < each.records < SAMPLED_ALONE:
            say(
                "",
                f"{each.name} has only {counted(each.records, 'record')}, so what an empty stream takes "
                "counts much in the bytes of each. A --sample tells better.",
            )
    limited = [each.stays_at for each in lines if each.kind != "ids" and each.stays_at is not None]
    told = f"What has a limit stays at {memory(sum(limited))} together"
    say("", f"{told if limited else 'Nothing here has a limit'}; ids are extra, if each send has one.")
    if unknown := [f"{each.kind} {each.name}" for each in lines if each.why and each.bytes_each is None]:
        say(f"Not counted, since nothing tells its size: {', '.join(unknown)}.")


def _archives(
    selection: Selection,
    specs: Mapping[str, StreamSpec],
    rates: Mapping[str, float],
    prices: str | None,
    *,
    as_json: bool,
) -> None:
    """Print what the archives of streams take."""
    from streamworker.cli.archive.sizing import MONTH_DAYS, archive_lines, prices_of

    given = prices_of(prices)

    async def look(backend: Backend) -> Any:
        return await archive_lines(specs, rates, await holdings_of(backend, selection), given)

    lines = ask(selection.app, look)
    if as_json:
        print_json([asdict(each) for each in lines])
        return
    if not lines:
        give_up("No stream of these has an archive and a rate.")
    month = MONTH_DAYS
    rows = [
        (
            each.name,
            None if each.bytes_each is None else round(each.bytes_each),
            memory(each.bytes_day),
            memory(None if each.bytes_day is None else each.bytes_day * month),
            f"{each.objects_day:,}",
            f"{each.objects_day * month:,}",
            None if each.price_month is None else f"{each.price_month:,.2f}",
        )
        for each in lines
    ]
    names = ("archive of", "bytes each", "a day", "a month", "objects a day at most", "a month", "price")
    print_table(names, rows)
    if any(each.bytes_each is None for each in lines):
        say("", "Where nothing is archived yet, nothing tells the bytes of a record.")
    if given is not None:
        say("", "The price is that of a month's puts, and of a month of what they bring.")


def _rates(given: Sequence[str], specs: Mapping[str, StreamSpec]) -> dict[str, float]:
    """Return the records a second of each stream."""
    found: dict[str, float] = {}
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            rate = float(number)
        except ValueError:
            rate = -1.0
        if not 0 <= rate < inf:
            hint = "Write a number of records a second, or STREAM=NUMBER."
            raise typer.BadParameter(f"{text!r} is no rate. {hint}", param_hint="--rate")
        if name and name not in specs:
            raise typer.BadParameter(_unknown(name, specs), param_hint="--rate")
        found |= {name: rate} if name else {each: rate for each in specs if each not in found}
    return found


def _unknown(name: str, specs: Mapping[str, StreamSpec]) -> str:
    return f"The app has no stream {name!r}. It has: {', '.join(sorted(specs))}."


async def _look(backend: Backend, selection: Selection) -> tuple[Holdings, list[GroupSnapshot]]:
    snapshots = [await take(backend, spec) for spec in selection.processors]
    return await holdings_of(backend, selection), snapshots


def _lines(
    holdings: Holdings, snapshots: Sequence[GroupSnapshot], rates: Mapping[str, float]
) -> Iterator[Line]:
    groups = {each.processor: each for each in snapshots}
    for held in holdings.held:
        if held.kind in ("state", "dead letters"):
            if held.size:
                yield Line(held.kind, held.name, None, None, held.size)
            continue
        if held.kind == "stream":
            rate, ends = rates.get(held.name), "a group has not read"
        else:
            group = groups[held.name]
            rows = sum(view.rows for view in group.all_partitions)
            if not (held.records or rows):
                continue
            source, ends = rates.get(group.stream), "a reader has not read"
            rate = None if source is None else source * rows / max(1, group.committed)
        yield _line(held, rate, f"what {ends}")
    for group in snapshots:
        for table in group.tables:
            each = table.bytes / table.keys if table.bytes and table.keys else None
            yield Line("table", table.name, each, None, table.bytes)


def _line(held: Holding, rate: float | None, ends: str) -> Line:
    if not held.records:
        why = (
            "no record is there: let it run, or give a --sample"
            if held.kind == "stream"
            else "no row is there"
        )
        return Line(held.kind, held.name, None, None, None, why)
    if not held.size:
        return Line(held.kind, held.name, None, None, None, "Redis does not tell its memory")
    each = held.size / held.records
    if rate is None:
        return Line(held.kind, held.name, each, None, None, "no --rate is given")
    stays_at = held.stays_at(rate * each)
    if held.is_endless:
        ends = "everything: no group reads it"
    hour = rate * each * HOUR_S
    return Line(held.kind, held.name, each, hour, *((None, ends) if stays_at == inf else (stays_at, "")))


def _ids(specs: Mapping[str, StreamSpec], rates: Mapping[str, float]) -> Iterator[Line]:
    for name, spec in specs.items():
        if rate := rates.get(name):
            bytes_s = rate * ID_BYTES
            yield Line("ids", name, ID_BYTES, bytes_s * HOUR_S, bytes_s * spec.id_window_ms / 1000)


# -- a sample ----------------------------------------------------------------------------------


def _sample(
    app: StreamApp, specs: Mapping[str, StreamSpec], file: Path, name: str | None, *, together: bool
) -> Holding:
    """Send the records of a file to a stream in a server of its own, and return what that holds."""
    if name is None and len(specs) == 1:
        (name,) = specs
    if name is None or name not in specs:
        wrong = "Name the stream of the sample." if name is None else _unknown(name, specs)
        raise typer.BadParameter(wrong, param_hint="--stream")
    spec = specs[name]
    lines = Lines(spec.record.decoder("json"), OnError.STOP)
    try:
        records = list(lines.records(file.read_bytes().split(b"\n")))
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="--sample") from None
    if lines.bad or not records:
        give_up(f"{file} is no sample of {name}: " + ("see above." if lines.bad else "it has no line."))
    return run_async(_stored, app, spec, records, together)


async def _stored(app: StreamApp, spec: StreamSpec, records: list[Any], together: bool) -> Holding:
    from streamworker.dev.server import EmbeddedServer

    with EmbeddedServer() as server:
        settings = replace(app.settings, redis_url=server.url)
        async with connected(settings, "size", CONNECTIONS) as backend:
            producer = Producer(backend, spec, settings)
            if together:
                # One call has no record twice: compression would make nothing of the second.
                for _ in range(min(-(-SAMPLED // len(records)), SAMPLED_ALONE)):
                    await producer.send_many(records)
            else:
                for record in islice(cycle(records), max(len(records), SAMPLED_ALONE)):
                    await producer.send(record)
            await producer.aclose()
            keys = StreamKeys(spec.app, spec.name)
            here = await measure_stream(backend, keys, spec.placement.total, size=True)
    held, size = sum(each.records for each in here), sum(each.size for each in here)
    return Holding("stream", spec.name, held, size, str(spec.retention or ""))
