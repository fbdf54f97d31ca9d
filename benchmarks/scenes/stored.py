"""Scene ``stored``: Redis' memory for a record, by codec, compression and records in an entry."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal

import msgspec
import pyarrow as pa

from benchmarks.contest import Contest
from benchmarks.figures import Row
from benchmarks.measuring.figures import BenchFigures
from benchmarks.measuring.ground import BenchGround
from benchmarks.measuring.task import BenchEvent, events
from streamworker import App
from streamworker.dev.flights import Flight, as_records, load_flights
from streamworker.errors import ConfigurationError
from streamworker.records.packs import pack

PER_ENTRY = (10, 100, 1000)
CODECS: tuple[Literal["json", "msgpack"], ...] = ("json", "msgpack")
COMPRESSIONS = ("none", "lz4", "zstd")
"""``streamworker`` takes zstd; the others show what that saves."""
KEYS: dict[Any, str] = {BenchEvent: "key", Flight: "carrier"}
PARTITIONS = 12
"""To which one ``send_many`` sends the records by their keys."""


async def stored(contest: Contest) -> list[Row]:
    """Measure orders and flights in entries of some records against an entry for each record."""
    sets: dict[str, list[Any]] = {"orders": list(events(contest.records))}
    try:
        sets["flights"] = list(islice(as_records(load_flights()), contest.records))
    except ConfigurationError as error:
        contest.left_out.append(f"flights: {error}")
    rows = []
    for name, records in sets.items():
        for codec in CODECS:
            contest.say(f"{name}, {codec}")
            encode = (msgspec.json if codec == "json" else msgspec.msgpack).Encoder().encode
            payloads = list(map(encode, records))
            single = await _bytes(contest.ground, [[b"v", each] for each in payloads], len(payloads))
            for per_entry in PER_ENTRY:
                parts = [payloads[at : at + per_entry] for at in range(0, len(payloads), per_entry)]
                for compression in COMPRESSIONS:
                    entries = [_entry(part, codec, compression) for part in parts]
                    what = f"{name}, {codec}, {per_entry:,} an entry, {compression}"
                    ours = await _bytes(contest.ground, entries, len(payloads))
                    rows.append(Row(f"stored-{what}", what, ours, single))
            what = f"{name}, {codec}, one send_many to {PARTITIONS} partitions"
            rows.append(Row(f"stored-{what}", what, await _sent(contest.ground, records, codec), single))
    return rows


async def _sent(ground: BenchGround, records: list[Any], codec: Literal["json", "msgpack"]) -> BenchFigures:
    """Send the records as a program does."""
    app, kind = App(ground.name, redis_url=ground.url), type(records[0])
    stream = app.stream("stored", kind, key=KEYS[kind], codec=codec, partitions=PARTITIONS)
    async with app:
        await stream.send_many(records)
    keys = ground.keys("stored", PARTITIONS)
    sizes = await ground.backend.pipeline([("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys])
    await ground.remove_keys()
    return BenchFigures("an entry each", "bytes", (sum(size or 0 for size in sizes) / len(records),))


def _entry(payloads: Sequence[bytes], codec: str, compression: str) -> list[bytes]:
    """Return the entry that an append writes, with another compression if that is asked."""
    flat = pack(payloads, is_json=codec == "json")
    values = dict(zip(flat[::2], flat[1::2], strict=True))
    raw = values[b"v"]
    if values[b"codec"] == b"zstd":
        raw = pa.decompress(raw, decompressed_size=int(values[b"size"]), codec="zstd", asbytes=True)
    if compression == "none":
        values |= {b"v": raw, b"codec": b"none"}
    elif compression != "zstd":
        values |= {b"v": pa.compress(raw, codec=compression, asbytes=True), b"codec": compression.encode()}
    head = [b"sw:first", b"1700000000000-1", b"extra", b"100000"]  # As long as those that the script writes.
    return [*head, *(part for pair in values.items() for part in pair)]


async def _bytes(ground: BenchGround, entries: Sequence[Sequence[bytes]], records: int) -> BenchFigures:
    key = ground.keys("stored", 1)[0]
    for at in range(0, len(entries), 1000):
        await ground.backend.pipeline([("XADD", key, "*", *flat) for flat in entries[at : at + 1000]])
    size = await ground.backend.execute("MEMORY", "USAGE", key, "SAMPLES", 0)
    await ground.remove_keys()
    return BenchFigures("an entry each", "bytes", (size / records,))
