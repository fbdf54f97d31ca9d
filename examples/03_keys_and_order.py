"""Order by key.

The key decides the partition, and one worker handles each partition strictly in order. So all moves
of one aircraft are handled in the order in which they were sent. Other aircraft are handled at the
same time, here by two workers that share the partitions. A record whose key is None goes to any
partition, and its order is not guaranteed.
"""
# prints: 40 aircraft, 25 moves each, 0 out of order

from collections import defaultdict

import anyio
import msgspec

from streamworker import App, Context
from streamworker.testing import local_worker, quiet_logs

app = App("airport")


class Move(msgspec.Struct):
    aircraft: str | None
    number: int


moves = app.stream("moves", Move, key="aircraft", partitions=8)
seen: dict[str | None, list[int]] = defaultdict(list)
places: dict[str | None, set[int]] = defaultdict(set)


@app.processor(moves)
async def follow(move: Move, ctx: Context) -> None:
    seen[move.aircraft].append(move.number)
    places[move.aircraft].add(ctx.partition)


async def main() -> None:
    async with (
        local_worker(app, name="first") as worker,
        local_worker(app, name="second"),
    ):
        await moves.send_many(Move(f"N{plane:03}", n) for n in range(25) for plane in range(40))
        await moves.send_many(Move(None, n) for n in range(8))
        await worker.until_drained()
    print(f"the moves without a key went to {len(places.pop(None))} partitions")
    assert all(len(partitions) == 1 for partitions in places.values())
    unkeyed = seen.pop(None)
    assert sorted(unkeyed) == list(range(8))
    wrong = sum(numbers != sorted(numbers) for numbers in seen.values())
    print(f"{len(seen)} aircraft, {len(seen['N000'])} moves each, {wrong} out of order")


if __name__ == "__main__":
    quiet_logs()
    anyio.run(main)
