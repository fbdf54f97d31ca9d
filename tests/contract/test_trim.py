"""Trimming: only what every group has committed and every reader has read."""

import pytest

from streamworker.core.data.entries import ZERO
from streamworker.core.data.readers import HOLD_MS, ReaderPosition
from streamworker.redisio.data import streams, trimming
from streamworker.redisio.group import readers
from tests.contract.support import GROUP, Group, Raw, register_reader, request

pytestmark = pytest.mark.anyio


@pytest.mark.usefixtures("small_nodes")
@pytest.mark.parametrize("passed, left", [(0, 4), (9, 4), (10, 3), (25, 2), (40, 0), (99, 0)])
async def test_acked_batches_go_when_their_last_row_was_read(group: Group, passed: int, left: int) -> None:
    """A batch that a reader has read in part stays whole."""
    entries, lock = await group.begun(4)
    previous = lock.checkpoint
    for entry in entries:
        await group.commit(request(lock, [entry], rows=10, previous=previous))
        previous = entry.id
    assert await trimming.trim_many(group.backend, GROUP, {0: passed}) == {0: (4, 4 - left, 0)}
    kept = await streams.range_entries(group.backend, GROUP.acked(0), ZERO, None, 10)
    assert [entry.id.ms for entry in kept] == [10, 20, 30, 40][4 - left :]


async def test_the_slowest_reader_decides_about_the_acked_log(group: Group) -> None:
    """Each partition for itself; one that a reader has not begun yet is not trimmed at all."""
    logs = {p: (await group.own(partition=p)).log for p in range(3)}
    assert (await readers.slowest_rows(group.backend, GROUP)).rows == {}
    fast = ReaderPosition({0: 10, 1: 20, 2: 30}, logs, 5)
    slow = ReaderPosition({0: 40, 1: 7}, {0: logs[0], 1: logs[1]}, 6)
    await register_reader(group.backend, GROUP, "fast", fast)
    assert (await readers.slowest_rows(group.backend, GROUP)).rows == {0: 10, 1: 20, 2: 30}
    await register_reader(group.backend, GROUP, "slow", slow)
    assert (await readers.slowest_rows(group.backend, GROUP)).rows == {0: 10, 1: 7}
    assert await readers.positions(group.backend, GROUP) == {"fast": fast, "slow": slow}


async def test_a_position_in_a_log_that_was_replaced_trims_nothing(group: Group, raw: Raw) -> None:
    old = await group.own()
    await register_reader(group.backend, GROUP, "spark", ReaderPosition({0: 100}, {0: old.log}, 5))
    raw.delete(GROUP.lock(0), GROUP.acked(0))
    await group.own()
    assert (await readers.slowest_rows(group.backend, GROUP)).rows == {}


async def test_a_reader_that_cannot_be_read_holds_everything_back(group: Group, raw: Raw) -> None:
    """Trimming too little is noticed and can be put right."""
    log = (await group.own()).log
    await register_reader(group.backend, GROUP, "spark", ReaderPosition({0: 100}, {0: log}, 5))
    for broken in ("", "[]", "{}", '{"p": {"0": "x"}, "log": {}, "at": 1}', "\xff"):
        raw.hset(GROUP.readers, "broken", broken.encode("latin-1"))
        assert (await readers.slowest_rows(group.backend, GROUP)).rows == {}


async def test_a_hold_keeps_rows_until_it_ends(group: Group, raw: Raw) -> None:
    """Those that are over, cannot be read, or end later than any hold may, count for nothing and go."""
    log, now_ms = (await group.own()).log, await group.backend.time_ms()
    for name, until_ms, held_log in (
        ("now", now_ms + HOLD_MS, log),
        ("other", now_ms + HOLD_MS, "another log"),
        ("over", now_ms, log),
        ("forged", now_ms + 10 * HOLD_MS, log),
    ):
        hold = ReaderPosition({0: 7 if name == "now" else 1}, {0: held_log}, now_ms, until_ms=until_ms)
        raw.hset(GROUP.holds, name, hold.text())
    raw.hset(GROUP.holds, b"\xff", b"[no json")
    assert (await readers.slowest_rows(group.backend, GROUP)).rows == {}, (
        "a hold alone lets nothing be trimmed"
    )
    assert set(raw.hkeys(GROUP.holds)) == {b"now", b"other"}
    await register_reader(group.backend, GROUP, "spark", ReaderPosition({0: 100}, {0: log}, 5))
    assert (await readers.slowest_rows(group.backend, GROUP)).rows == {0: 7}
    raw.hdel(GROUP.holds, "now")
    assert (await readers.slowest_rows(group.backend, GROUP)).rows == {0: 100}


async def test_a_forgotten_reader_holds_nothing_back(group: Group) -> None:
    """Once it is gone the others decide; forgetting it again is no error."""
    log = (await group.own()).log
    for name, rows in (("gone", 0), ("here", 50)):
        await register_reader(group.backend, GROUP, name, ReaderPosition({0: rows}, {0: log}, 5))
    assert await readers.forget(group.backend, GROUP, "gone")
    assert not await readers.forget(group.backend, GROUP, "gone")
    assert (await readers.slowest_rows(group.backend, GROUP)).rows == {0: 50}
