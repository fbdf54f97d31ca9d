"""Scene ``waiting``: a handler that waits, with calls in order and with concurrent calls."""

from streamworker.dev.bench.contest import Contest, Contestant, rates
from streamworker.dev.bench.figures import Row, Target

KEYS = 1_000
IN_ORDER_MAX = 1_000
"""In order these take 5 s; the concurrent calls get 20 times as many records."""
TIMES = 20


async def waiting(contest: Contest) -> list[Row]:
    """Measure ``concurrency=64, ordered_by="key"`` against the same handler in order."""
    count = min(contest.records // TIMES, IN_ORDER_MAX)
    overlapping = Contestant("concurrency=64", mode="overlapping", entries="many")
    in_order = Contestant("in order", mode="waiting", entries="few")
    keys = {
        "many": await contest.ground.fill_records("many", count * TIMES, keys=KEYS),
        "few": await contest.ground.fill_records("few", count, keys=KEYS),
    }
    speed = rates(await contest.in_turn([overlapping, in_order], keys))
    what = "calls that overlap, in order by key: the handler waits 5 ms, 1,000 keys"
    return [Row("waiting", what, speed[overlapping.name], speed[in_order.name], Target(30))]
