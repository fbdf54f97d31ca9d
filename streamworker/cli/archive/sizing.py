"""What the archives of an app take at a rate: bytes and objects, and their price."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import typer

from streamworker.cli.archive.places import Place, in_threads
from streamworker.core.data.archivelife import DAY_MS, objects_a_day
from streamworker.core.holdings import Holdings
from streamworker.declaring.specs import StreamSpec

LOOKED_AT = 3
"""The newest segments of a partition, by which the bytes of a record are known."""
MONTH_DAYS = 30
GB, MILLION = 1e9, 1e6


@dataclass(frozen=True, slots=True)
class ArchiveLine:
    """What the archive of one stream takes at a rate."""

    name: str
    bytes_each: float | None
    """Bytes of a record in its newest segments; None if there is none."""
    bytes_day: float | None
    objects_day: int
    """At most."""
    price_month: float | None = None
    """What a month costs that adds so much: the bytes, kept for a month, and the puts."""


def prices_of(text: str | None) -> tuple[float, float] | None:
    """Parse ``--prices``: of a GB and month, and of a million puts."""
    if text is None:
        return None
    try:
        gb, puts = (float(each) for each in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not GB,PUTS, such as 0.023,5.", param_hint="--prices"
        ) from None
    return gb, puts


async def archive_lines(
    specs: Mapping[str, StreamSpec],
    rates: Mapping[str, float],
    holdings: Holdings,
    prices: tuple[float, float] | None,
) -> list[ArchiveLine]:
    """Return a line for each stream with an archive and a rate."""
    held = {each.name: each for each in holdings.held if each.kind == "stream"}
    lines = []
    for name, spec in specs.items():
        if spec.archive is None or not (rate := rates.get(name)):
            continue
        place, partitions = Place(spec, spec.archive), len(spec.placement.active)
        found = await in_threads(partial(_newest, place), spec.placement.active)
        records = sum(count for each in found for count, _ in each)
        each = sum(size for each in found for _, size in each) / records if records else None
        by_time = objects_a_day(partitions, spec.archive.every_ms)
        in_redis = held[name].size / held[name].records if name in held and held[name].records else 0.0
        by_size = rate * in_redis * (DAY_MS / 1000) / spec.archive.size_bytes
        objects = round(min(max(by_time, by_size), rate * DAY_MS / 1000))
        day = None if each is None else rate * each * DAY_MS / 1000
        price = None
        if prices is not None and day is not None:
            price = MONTH_DAYS * (day / GB * prices[0] + objects / MILLION * prices[1])
        lines.append(ArchiveLine(name, each, day, objects, price))
    return lines


def _newest(place: Place, partition: int) -> list[tuple[int, int]]:
    """Return records and bytes of the newest segments."""
    chain = place.chain(partition)
    newest = [(chain.footer(segment.after), segment.size) for segment in chain.segments()[-LOOKED_AT:]]
    return [(footer.records, size) for footer, size in newest if footer is not None]
