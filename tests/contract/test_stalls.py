"""A stall is shown in the lock, and never over what says more."""

from dataclasses import replace

import pytest
import redis

from streamworker.redisio.group.stalls import PREFIX, Stall, show_stalls
from tests.contract.support import Group, everything

pytestmark = pytest.mark.anyio


async def owned(group: Group) -> Stall:
    """Take a partition's lock; returns what would be shown of it."""
    await group.register()
    lock = await group.own("w1")
    return Stall(0, "w1", lock.epoch, "running", "12:00", "its function")


async def test_a_stall_is_shown_and_its_end_too(group: Group) -> None:
    """In the reason, where `status` shows it."""
    stall = await owned(group)
    await show_stalls(group.backend, group.keys, [stall])
    assert (await group.lock()).reason == f"{PREFIX}12:00: waits for its function"
    await show_stalls(group.backend, group.keys, [replace(stall, since="")])
    assert ((await group.lock()).state, (await group.lock()).reason) == ("running", "")


@pytest.mark.parametrize(
    "lock",
    [{"state": "halted", "reason": ""}, {"reason": "acked log full"}, {"owner": "w2"}, {"epoch": "9"}],
    ids="-".join,
)
async def test_what_says_more_stays(group: Group, raw: "redis.Redis", lock: dict[bytes, str]) -> None:
    """A partition that halted, a log that is full, a lock of somebody else."""
    stall = await owned(group)
    raw.hset(group.keys.lock(0), mapping=lock)  # type: ignore[arg-type]
    before = everything(raw)
    await show_stalls(group.backend, group.keys, [stall])
    await show_stalls(group.backend, group.keys, [replace(stall, since="")])
    assert everything(raw) == before
