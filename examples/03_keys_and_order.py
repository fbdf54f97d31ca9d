"""Order by key.

The key decides the partition, and each partition is handled strictly in order by one worker. So
all moves of one aircraft come in the order in which they were sent, while other aircraft are
handled beside them, here by two workers that share the partitions. A record whose key is None
goes to any partition: nothing is promised about its order.
"""
# prints: 40 aircraft, 25 moves each, 0 out of order

from collections import defaultdict

import anyio
import msgspec

from streamworker import App, Context
from streamworker.dev.server import EmbeddedServer
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
    with EmbeddedServer() as server:
        async with (
            local_worker(app, redis_url=server.url, name="first") as worker,
            local_worker(app, redis_url=server.url, name="second"),
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
