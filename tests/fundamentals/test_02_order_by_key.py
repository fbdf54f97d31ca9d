"""Records with one key keep their order; different keys are handled side by side."""

from collections import defaultdict

import msgspec
import pytest

from streamworker import App, Context
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Move(msgspec.Struct):
    """A record with a key that may be missing."""

    aircraft: str | None
    number: int


async def test_records_with_one_key_are_handled_in_the_order_in_which_they_were_sent(redis_url: str) -> None:
    """They all go to one partition, and a partition is handled by one worker, one after the other."""
    app = App("airport", redis_url=redis_url)
    moves = app.stream("moves", Move, key="aircraft", partitions=8)
    seen: dict[str | None, list[int]] = defaultdict(list)
    partitions: dict[str | None, set[int]] = defaultdict(set)

    @app.processor(moves)
    async def follow(move: Move, ctx: Context) -> None:
        seen[move.aircraft].append(move.number)
        partitions[move.aircraft].add(ctx.partition)

    async with local_worker(app, url=redis_url) as worker:
        await moves.send_many(Move(f"N{plane}", number) for number in range(30) for plane in range(10))
        await worker.until_drained()

    assert all(numbers == list(range(30)) for numbers in seen.values())
    assert all(len(places) == 1 for places in partitions.values())


async def test_records_without_a_key_are_spread_over_all_partitions(redis_url: str) -> None:
    """One partition after the other; nothing is promised about their order."""
    app = App("airport", redis_url=redis_url)
    moves = app.stream("moves", Move, key="aircraft", partitions=4)
    places: list[int] = []

    @app.processor(moves)
    async def follow(move: Move, ctx: Context) -> None:
        places.append(ctx.partition)

    async with local_worker(app, url=redis_url) as worker:
        await moves.send_many(Move(None, number) for number in range(8))
        await worker.until_drained()

    assert sorted(places) == [0, 0, 1, 1, 2, 2, 3, 3]
