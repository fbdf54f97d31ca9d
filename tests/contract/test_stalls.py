"""A stall is shown in the lock, and never over what says more."""

from dataclasses import replace

import pytest

from streamworker.core.events import MarkLock
from streamworker.redisio.group import locks
from streamworker.runtime.watch.watchdog import STALLED
from tests.contract.support import Group, Raw, everything

pytestmark = pytest.mark.anyio


async def owned(group: Group) -> MarkLock:
    """Take a partition's lock; returns what would be shown of it."""
    await group.register()
    lock = await group.own("w1")
    return MarkLock(0, "w1", lock.epoch, "running", f"{STALLED}12:00: waits for its function")


async def show(group: Group, stall: MarkLock) -> None:
    await locks.mark_many(group.backend, group.keys, [stall], only_over=STALLED)


async def test_a_stall_is_shown_and_its_end_too(group: Group) -> None:
    stall = await owned(group)
    await show(group, stall)
    assert (await group.lock()).reason == f"{STALLED}12:00: waits for its function"
    await show(group, replace(stall, reason=""))
    assert ((await group.lock()).state, (await group.lock()).reason) == ("running", "")


@pytest.mark.parametrize(
    "lock",
    [{"state": "halted", "reason": ""}, {"reason": "acked log full"}, {"owner": "w2"}, {"epoch": "9"}],
    ids="-".join,
)
async def test_what_says_more_stays(group: Group, raw: Raw, lock: dict[bytes, str]) -> None:
    """A partition that halted, a log that is full, a lock of somebody else."""
    stall = await owned(group)
    raw.hset(group.keys.lock(0), mapping=lock)  # type: ignore[arg-type]
    before = everything(raw)
    await show(group, stall)
    await show(group, replace(stall, reason=""))
    assert everything(raw) == before
