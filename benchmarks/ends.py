"""100,000 values that end at once, and how long other records wait meanwhile: `python -m benchmarks.ends`.

On a server of its own, one worker has four partitions. Its function sends a record for each value; once it
takes a list, and once one value. A record is sent every 20 ms, and waits from its send until it is handled.
"""

import asyncio
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from streamworker import App
from streamworker.cli.output import say
from streamworker.dev.server import EmbeddedServer
from streamworker.redisio.keys import StreamKeys
from streamworker.testing import local_worker, quiet_logs

VALUES, PARTITIONS, AHEAD_S = 100_000, 4, 20


class Seen(msgspec.Struct):
    """What a user has done, or a record that is only waited for."""

    user: str
    sent_at: float = 0.0


async def measured(url: str, *, takes_list: bool) -> str:
    """Let all values end at one time, and tell how it went."""
    app, waits, called = App("ends", redis_url=url), list[float](), 0
    seen = app.stream("seen", Seen, key="user", partitions=PARTITIONS)
    ended = app.stream("ended", Seen, key="user", partitions=PARTITIONS)
    users = app.table("users", float)
    until = datetime.now(UTC) + timedelta(seconds=AHEAD_S)

    @app.processor(seen, batch=500, tables=[users])
    async def follow(batch: list[Seen]) -> None:
        now = time.time()
        waits.extend(now - each.sent_at for each in batch if each.sent_at)
        users.set_many({each.user: 0.0 for each in batch if not each.sent_at}, until=until)

    async def one(user: str, _: float) -> Seen:
        nonlocal called
        called += 1
        return Seen(user)

    async def many(pairs: list[tuple[str, float]]) -> list[Seen]:
        return [await one(*each) for each in pairs]

    function: Any = many if takes_list else one
    follow.expired(users, into=ended)(function)
    async with local_worker(app, url=url) as worker:
        await seen.send_many(Seen(f"user-{n:06}") for n in range(VALUES))
        await worker.until_drained()
        keys, ask = StreamKeys("ends", "seen"), app.backend().execute
        size = sum([await ask("MEMORY", "USAGE", keys.due(p, "users")) for p in range(PARTITIONS)])
        await asyncio.sleep((until - datetime.now(UTC)).total_seconds())
        began_s = time.time()
        while called < VALUES:
            await seen.send(Seen(f"other-{len(waits)}", time.time()))
            await asyncio.sleep(0.02)
        took_s = time.time() - began_s
        await worker.until_drained()
    how = "in lists" if takes_list else "one by one"
    median, most = statistics.median(waits) * 1000, max(waits) * 1000
    waited = f"other records waited {median:.0f} ms in the median and {most:.0f} ms at most"
    return f"{how}: {took_s:.1f} s; {waited}; {size / VALUES:.0f} bytes a value for its end"


def main() -> None:
    """Measure both, each on an empty server."""
    quiet_logs()
    for takes_list in (True, False):
        with EmbeddedServer() as server:
            say(asyncio.run(measured(server.url, takes_list=takes_list)))


if __name__ == "__main__":
    main()
