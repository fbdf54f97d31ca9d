"""The records as a stream that the function iterates over."""

import msgspec
import pytest

from streamworker import App, Context, Records, Retry
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Reading(msgspec.Struct):
    value: int


async def test_asking_for_the_next_record_acks_the_one_before(redis_url: str) -> None:
    """The function runs until the partition is handed over; then its loop ends."""
    app = App("meters", redis_url=redis_url)
    readings = app.stream("readings", Reading, partitions=1)
    told: list[str] = []

    @app.processor(readings)
    async def total(records: Records[Reading]) -> None:
        sum_ = 0
        async for reading in records:
            sum_ += reading.value
        told.append(f"saw {sum_}")

    async with local_worker(app, url=redis_url) as worker:
        await readings.send_many(Reading(n) for n in range(10))
        await worker.until_drained()
        assert told == []
    assert told == ["saw 45"]


async def test_take_gives_lists_and_the_context_names_their_entries(redis_url: str) -> None:
    """All records of a list are acked together."""
    app = App("meters", redis_url=redis_url)
    readings = app.stream("readings", Reading, partitions=1)
    lists: list[list[int]] = []

    @app.processor(readings)
    async def report(records: Records[Reading], ctx: Context) -> None:
        async for batch in records.take(4, within="0.1 seconds"):
            assert len(ctx.entry_ids) == len(batch)
            lists.append([reading.value for reading in batch])

    await readings.send_many(Reading(n) for n in range(10))
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
    assert lists == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_after_an_error_the_function_begins_again_with_the_first_record_that_is_not_acked(
    redis_url: str,
) -> None:
    """What was acked before is not given again."""
    app = App("meters", redis_url=redis_url)
    readings = app.stream("readings", Reading, partitions=1)
    given: list[int] = []

    @app.processor(readings, errors=Retry(attempts=3, backoff=0.01))
    async def fragile(records: Records[Reading], ctx: Context) -> None:
        async for reading in records:
            given.append(reading.value)
            if reading.value == 3 and given.count(3) < 2:
                raise ConnectionError("lost the station")

    await readings.send_many(Reading(n) for n in range(6))
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
    assert given == [0, 1, 2, 3, 3, 4, 5]
