"""A function that iterates over the records of a partition.

The function is called once for each partition and runs until the worker releases the partition. A
record is acked when the loop asks for the next one, so local variables may outlive a record: here a
connection that is opened once. With `records.take(n, within=s)` the loop gets lists of records.
"""
# prints: 30 readings in 3 reports

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec

from streamworker import App, Context, Records
from streamworker.testing import local_worker, quiet_logs

app = App("meters")


class Reading(msgspec.Struct):
    meter: int
    value: int


readings = app.stream("readings", Reading, key="meter", partitions=1)
reports: list[list[int]] = []


@asynccontextmanager
async def station() -> AsyncIterator[list[list[int]]]:
    print("connected to the station")
    yield reports
    print("disconnected")


@app.processor(readings)
async def report(records: Records[Reading], ctx: Context) -> None:
    async with station() as connection:
        async for batch in records.take(10, within=0.5):
            connection.append([reading.value for reading in batch])
            print(f"partition {ctx.partition}: reported {len(batch)} readings")


async def main() -> None:
    async with local_worker(app) as worker:
        await readings.send_many(Reading(1, n) for n in range(30))
        await worker.until_drained()
    print(f"{sum(len(values) for values in reports)} readings in {len(reports)} reports")


if __name__ == "__main__":
    quiet_logs()
    anyio.run(main)
