"""A function that takes a list is called with batches: by number, by age, by bytes."""

import anyio
import msgspec
import pyarrow as pa
import pytest

from streamworker import App, Context, Records
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Reading(msgspec.Struct):
    value: int


async def test_a_batch_has_at_most_so_many_records_and_is_one_commit(redis_url: str) -> None:
    """What is there when the time is up is handled, however little. The rows of a batch are one entry of the
    acked log, and its context names each entry.
    """
    app = App("meters", redis_url=redis_url)
    readings = app.stream("readings", Reading, partitions=1)
    batches: list[list[int]] = []
    ids: list[str] = []

    @app.processor(readings, batch=40, within=0.1)
    async def store(batch: list[Reading], ctx: Context) -> list[Reading]:
        batches.append([reading.value for reading in batch])
        assert len(ctx.entry_ids) == len(batch)
        ids.extend(str(entry_id) for entry_id in ctx.entry_ids)
        return batch

    await readings.send_many(Reading(n) for n in range(100))
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
        (partition,) = (await worker.snapshot()).processors["store"].partitions

    assert [len(batch) for batch in batches] == [40, 40, 20]
    assert [value for batch in batches for value in batch] == list(range(100))
    assert (partition.rows, partition.acked_length) == (100, 3)
    assert partition.checkpoint == ids[-1]


async def test_a_record_alone_waits_for_no_company_unless_within_says_so() -> None:
    """A batch is taken as soon as the one before is done, in each mode that has batches."""
    app = App("meters")
    readings = app.stream("readings", Reading, partitions=1)
    rows = app.stream("rows", Reading, partitions=1, codec="arrow")
    waited_s: dict[str, float] = {}

    @app.processor(readings, batch=1_000)
    async def in_lists(batch: list[Reading]) -> None:
        waited_s["lists"] = anyio.current_time() - sent_s

    @app.processor(readings, batch=1_000)
    async def as_stream(records: Records[Reading]) -> None:
        async for _ in records.take(1_000):
            waited_s["stream"] = anyio.current_time() - sent_s

    @app.processor(rows, batch=1_000)
    async def in_columns(batch: pa.RecordBatch) -> None:
        waited_s["columns"] = anyio.current_time() - sent_s

    @app.processor(readings, batch=1_000, within=0.2)
    async def patient(batch: list[Reading]) -> None:
        waited_s["patient"] = anyio.current_time() - sent_s

    async with local_worker(app, clock="virtual") as worker:
        await worker.advance(10)
        sent_s = anyio.current_time()
        await readings.send(Reading(1))
        await rows.send_many([Reading(1)])
        await worker.until_drained()

    assert waited_s.pop("patient") == pytest.approx(0.2, abs=0.01)
    assert waited_s == {"lists": 0, "stream": 0, "columns": 0}


async def test_a_batch_forms_while_the_one_before_it_runs() -> None:
    """It has all that came meanwhile, so that a processor behind a flow has large batches by itself."""
    app = App("meters")
    readings = app.stream("readings", Reading, partitions=1)
    sizes: list[int] = []

    @app.processor(readings, batch=25)
    async def store(batch: list[Reading]) -> None:
        sizes.append(len(batch))
        await anyio.sleep(1)

    async with local_worker(app, clock="virtual") as worker:
        for n in range(50):
            await readings.send(Reading(n))
            await worker.advance(0.03)
        await worker.until_drained()

    assert sizes == [1, 25, 24]
