"""What tests of a growth share: its steps one by one, and what must hold in the end, whatever was lost."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping

import pytest

from streamworker.core.data.placement import Placement
from streamworker.errors import StreamworkerError
from streamworker.records import RecordType
from streamworker.redisio.admin import growth
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import Durability
from streamworker.runtime.run import generations
from streamworker.runtime.run.generations import Generations
from tests.helpers import wait_for_async
from tests.raw import opened, records_in
from tests.runtime.test_grown_groups import GROUPS, Order, Shop, all_committed, grow, read

KEYS = GROUPS[0]
STEPS = ("prepared", "registered", "sealed", "opened")
DECODE = RecordType.of(Order).decoder("json")


class Cut(Exception):
    """The command is killed here."""


async def go_to(step: str, backend: Backend, count: int, durability: Durability) -> None:
    """Take the steps of a growth up to one, as a command that is killed then."""

    def told(_: str, through: int, of: int) -> None:
        if step == ("sealed" if through == of else "registered"):
            raise Cut

    await growth.prepare(backend, KEYS, count, durability)
    if step != "prepared":
        with contextlib.suppress(Cut):
            await growth.go_on(backend, KEYS, durability, "test", told)


class Menders:
    """Workers that go on with a growth only when they may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may, mend = True, Generations._mend

        async def mending(generations: Generations, *maps: tuple[int, ...]) -> None:
            if self.may:
                await mend(generations, *maps)

        monkeypatch.setattr(Generations, "_mend", mending)
        monkeypatch.setattr(generations, "LOOK_S", 1.0)
        monkeypatch.setattr(generations, "LOOK_S_PER_PARTITION", 0.0)


async def until_grown(backend: Backend, after: Placement, *, again: bool = False) -> None:
    """Wait until the change is through; with ``again`` the command is run until then."""

    async def is_through() -> bool:
        with contextlib.suppress(StreamworkerError):  # Connections may still lead to the former primary.
            maps = await growth.read_maps(backend, KEYS)
            if maps.now.counts == after.counts:
                return not maps.is_changing
            if again:
                await grow(backend, after.live)
        return False

    await wait_for_async(is_through, f"{after} is the map")


async def until_through(
    backend: Backend, shop: Shop, found: Mapping[str, list[int]], after: Placement
) -> None:
    """Wait until each group has committed all that is there, each record once, and all partitions are open.

    The locks of old partitions may have an owner: a failover restores it, and nobody asks for it (0086).
    """
    shop.sent = Counter({customer: len(numbers) for customer, numbers in found.items()})
    await all_committed(backend, shop, *after.counts)
    for keys in GROUPS:

        async def is_through(keys: GroupKeys = keys) -> bool:
            locks = await read(backend, keys, after.total)
            return all(not locks[p].waits_for and locks[p].done == (p < after.base) for p in after.all)

        await wait_for_async(is_through, f"{keys.group} goes on")


def numbers_there(url: str, total: int) -> dict[str, list[int]]:
    """Return the numbers of each customer's records, one partition after the other."""
    found = defaultdict[str, list[int]](list)
    with opened(url) as raw:
        for partition in range(total):
            for _, fields in records_in(raw, KEYS.events(partition)):
                order = DECODE(fields)
                found[order.customer].append(order.n)
    return found


def check_order(shop: Shop, found: Mapping[str, list[int]]) -> None:
    """Check that each group handled all that is there, in the order of its key; it may have repeated some."""
    for its in shop.handled.values():
        last = dict.fromkeys(found, -1)
        for customer, n in its:
            if n in found[customer]:
                place = found[customer].index(n)
                assert place <= last[customer] + 1, (customer, n)
                last[customer] = max(place, last[customer])
        assert last == {customer: len(numbers) - 1 for customer, numbers in found.items()}
