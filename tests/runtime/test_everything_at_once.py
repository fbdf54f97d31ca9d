"""Poison, rows without a form, damaged entries, passing errors and lost replies, all in one run."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from streamworker import DeadLetter, Retry
from streamworker.context import Context
from streamworker.feed import Records
from tests.chaos.proxy import proxied
from tests.helpers import wait_for_async
from tests.runtime.workbench import OVERLAPPING, Bench, Order, Priced, bench, handler

pytestmark = pytest.mark.anyio

COUNT, KEYS = 150, 7


class Trouble:
    """What goes wrong in one run, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        numbers = range(COUNT)
        self.poison = set(self.rng.sample(numbers, self.rng.randrange(8)))
        self.misfits = set(self.rng.sample(numbers, self.rng.randrange(4)))
        self.damaged = set(self.rng.sample(numbers, self.rng.randrange(4)))
        self.passing = dict.fromkeys(self.rng.sample(numbers, self.rng.randrange(4)), 1)
        """Numbers that fail once."""
        self.calls: Counter[int] = Counter()
        self.begun: list[int] = []
        """The number of each call, in the order in which calls began."""

    @property
    def good(self) -> list[int]:
        """Numbers that must come out, in order."""
        bad = self.poison | self.misfits | self.damaged
        return [n for n in range(COUNT) if n not in bad]

    def handle(self, number: int, ctx: Context, *, with_state: bool = True) -> Priced:
        """Handle one number, or fail."""
        self.calls[number] += 1
        self.begun.append(number)
        if with_state:
            ctx.state["sum"] = ctx.state.get("sum", 0) + number
        if number in self.poison:
            raise ValueError(f"poison {number}")
        if self.passing.get(number, 0) > 0:
            self.passing[number] -= 1
            raise ConnectionError("not now")
        return Priced(2**80 if number in self.misfits else number, 1.0)

    def function(self, mode: str) -> Callable[..., Any]:
        """Return a processor function of a mode."""

        def each(order: Order, ctx: Context) -> Priced:
            return self.handle(order.number, ctx, with_state=mode != OVERLAPPING)

        async def as_stream(records: Records[Order], ctx: Context) -> None:
            async for order in records:
                ctx.forward(self.handle(order.number, ctx))

        async def as_lists(records: Records[Order], ctx: Context) -> None:
            async for part in records.take(9):
                for order in part:
                    ctx.forward(self.handle(order.number, ctx))
                if self.calls[part[0].number] % 5 == 4:
                    return

        streams: dict[str, Callable[..., Any]] = {"stream": as_stream, "lists": as_lists}
        return streams.get(mode) or handler(mode, each)


async def send(desk: Bench, trouble: Trouble) -> None:
    """Append the records, with damaged ones among them."""
    for number in range(COUNT):
        whole = b'{"number":%d,"customer":"k%d"}' % (number, number % KEYS)
        payload = b"{" if number in trouble.damaged else whole
        await desk.add_raw(payload)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ["batch", "record", "thread", "stream", "lists", OVERLAPPING])
async def test_every_good_record_comes_out_once_in_order_and_every_bad_one_is_a_dead_letter(
    redis_url: str, mode: str, seed: int
) -> None:
    """Rows, dead letters and state are exactly what they would be without any trouble. A closed gate lets no
    call begin, and holds no drain up.

    Where calls overlap, no record of a key is handled before the one in front of it is done.
    """
    trouble = Trouble(seed * 31 + len(mode))
    options: dict[str, Any] = {
        "errors": Retry(attempts=2, backoff=0.001, backoff_max=0.002, then=DeadLetter()),
    }
    if mode == "batch":
        options["batch"] = trouble.rng.randrange(1, 40)
    if mode == OVERLAPPING:
        options["concurrency"] = 4
    if mode in ("stream", "lists"):
        options |= {"output": Priced, "forward": True}
    async with proxied(redis_url) as proxy, bench(proxy.url) as desk:
        await send(desk, trouble)
        desk.gate.close()
        running = await desk.start(desk.spec(trouble.function(mode), **options))
        buffer = running.runner.intake.buffer
        await wait_for_async(lambda: buffer.waiting == COUNT or trouble.begun, "all wait at the gate")
        assert trouble.begun == []
        proxy.only_after, proxy.lose = b"EVALSHA", trouble.rng.randrange(4)
        desk.gate.open()
        await desk.until_committed(COUNT)
        proxy.lose = 0
        desk.gate.close()
        await running.drained()
        ids, dead = await desk.ids(), await desk.dead()
        assert [row["number"] for row in await desk.rows()] == trouble.good
        bad = sorted(trouble.poison | trouble.misfits | trouble.damaged)
        letters = {letter[b"id"].decode(): letter for letter in dead}
        assert len(dead) == len(letters) and letters.keys() == {ids[n] for n in bad}
        for number in trouble.poison - trouble.damaged:
            assert b"ValueError: poison %d" % number in letters[ids[number]][b"error"]
            assert letters[ids[number]][b"attempts"] == b"2"
        if mode == OVERLAPPING:
            of_keys = [[n for n in trouble.begun if n % KEYS == key] for key in range(KEYS)]
            assert all(numbers == sorted(numbers) for numbers in of_keys)
        else:
            assert dict(running.runner.invoker.state.view()) == {"sum": sum(trouble.good)}
        assert desk.budget.used == 0
