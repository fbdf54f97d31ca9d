"""Fills streams with entries of one record each; ``BenchGround.fill_packed`` puts many into one."""

from collections.abc import Iterable, Sequence
from itertools import cycle, islice

from benchmarks.measuring.ground import KEEPER, BenchGround
from benchmarks.measuring.task import payloads

FILL = 500
"""Entries that one round trip appends."""


async def append(
    ground: BenchGround, keys: Sequence[str], entries: Iterable[bytes], field: str = "v"
) -> None:
    """Append entries of one field each to the streams in turn; workers may trim them."""
    where = cycle(keys)
    left = iter(entries)
    while chunk := list(islice(left, FILL)):
        await ground.backend.pipeline([("XADD", next(where), "*", field, each) for each in chunk])


async def fill(ground: BenchGround, key: str, entries: Iterable[bytes], field: str = "v") -> None:
    """Append entries of one field each; ``KEEPER`` keeps them until the bench ends."""
    await append(ground, [key], entries, field)
    await ground.backend.execute("XGROUP", "CREATE", key, KEEPER, "0", "MKSTREAM")


async def fill_records(ground: BenchGround, stream: str, count: int, *, partitions: int = 1) -> list[str]:
    """Append the bench's records evenly to a stream's partitions, and return the partitions' keys."""
    names = ground.keys(stream, partitions)
    for at, name in enumerate(names):
        await fill(ground, name, payloads(count // partitions, first=at * (count // partitions)))
    return names
