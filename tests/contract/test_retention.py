"""Retention: what stays although everybody has passed it, and never less than somebody still needs."""

from collections.abc import Iterator
from typing import Any

import pytest

from streamworker.core.data.channel import AppendCode
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.retention import Retention
from streamworker.redisio.data import retention, streams, trimming
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.data.trimming import ANY_AGE, Keep
from streamworker.redisio.group.readers import ALL_ROWS
from tests.contract.support import GROUP, OTHER_GROUP, STREAM, Group, Raw, request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("small_nodes")]

HOUR_MS = 3_600_000
EVENTS, COUNTS = STREAM.events(0), STREAM.counts(0)
ACKED = GROUP.acked(0)


async def aged(group: Group, raw: Raw, *ages_ms: int) -> list[EntryId]:
    """Write entries of these ages, the oldest first, and return their ids."""
    now_ms = await group.backend.time_ms()
    return [EntryId.parse(raw.xadd(EVENTS, {"v": "1"}, id=f"{now_ms - age}-0")) for age in ages_ms]


async def left(group: Group) -> int:
    return len(await streams.range_entries(group.backend, EVENTS, ZERO, None, 10_000))


async def trim(group: Group, keep: Keep, rows: int = 0) -> trimming.Trimmed:
    return (await trimming.trim_many(group.backend, GROUP, {0: rows}, lambda _: keep))[0]


async def commit_all(group: Group, *, up_to: int = 10_000, owner: str = "w1") -> None:
    lock = await group.own(owner)
    entries = (await streams.range_entries(group.backend, EVENTS, ZERO, None, up_to))[:up_to]
    await group.commit(request(lock, entries, owner=owner))


async def test_what_all_have_read_stays_until_it_is_old(group: Group, raw: Raw) -> None:
    await aged(group, raw, 3 * HOUR_MS, 2 * HOUR_MS, HOUR_MS // 2, 0)
    await commit_all(group)
    assert (await trim(group, Keep(HOUR_MS))).events == 2
    assert await left(group) == 2
    assert (await trim(group, Keep())).events == 2, "without retention nothing stays"


@pytest.mark.parametrize("keep", [Keep(0), Keep(HOUR_MS), Keep(ANY_AGE, 0), Keep(HOUR_MS, 0)])
async def test_no_limit_drops_what_a_group_has_not_read(group: Group, raw: Raw, keep: Keep) -> None:
    """However old it is, and however much there is."""
    await aged(group, raw, *range(10 * HOUR_MS, 0, -HOUR_MS))
    other = group.other(OTHER_GROUP)
    await other.own("w2")
    await commit_all(group)
    assert (await trim(group, keep)).events == 0
    await commit_all(other, up_to=4, owner="w2")
    assert (await trim(group, keep)).events == 4
    assert await left(group) == 6


async def test_what_another_program_has_not_acknowledged_stays(group: Group, raw: Raw) -> None:
    ids = await aged(group, raw, *range(10 * HOUR_MS, 0, -HOUR_MS))
    await commit_all(group)
    raw.xgroup_create(EVENTS, "theirs", id="0")
    raw.xreadgroup("theirs", "c", {EVENTS: ">"}, count=8)
    raw.xack(EVENTS, "theirs", *map(str, ids[:3]))
    assert (await trim(group, Keep(HOUR_MS, 0))).events == 3


async def test_the_oldest_go_first_if_there_is_too_much(group: Group, raw: Raw) -> None:
    ids = await aged(group, raw, *range(10_000, 0, -1_000))
    await commit_all(group)
    assert (await trim(group, Keep(ANY_AGE, 7))).events == 3
    assert (await trim(group, Keep(ANY_AGE, 7))).events == 0, "a worker that measured before the first trim"
    assert (await trim(group, Keep(ANY_AGE))).events == 0
    assert (await streams.range_entries(group.backend, EVENTS, ZERO, None, 1))[0].id == ids[3]


@pytest.mark.parametrize(("keep", "dropped"), [(Keep(HOUR_MS), 8), (Keep(ANY_AGE, 4), 6), (Keep(), 0)])
async def test_a_stream_without_a_group_keeps_what_its_retention_says(
    group: Group, raw: Raw, keep: Keep, dropped: int
) -> None:
    """And everything without retention: nothing says what a reader to come will need."""
    await aged(group, raw, *(hours * HOUR_MS for hours in range(9, 1, -1)), 1_000, 0)
    assert (await trim(group, keep)).events == dropped
    assert (await trim(group, keep)).events == 0
    assert await left(group) == 10 - dropped


@pytest.mark.parametrize("keep", [Keep(HOUR_MS), Keep(ANY_AGE, 0)])
async def test_a_group_that_was_removed_from_the_lists_still_keeps_what_it_has_not_read(
    group: Group, raw: Raw, keep: Keep
) -> None:
    await aged(group, raw, 3 * HOUR_MS, 2 * HOUR_MS)
    await group.own()
    raw.delete(GROUP.groups(0))
    raw.xgroup_destroy(EVENTS, GROUP.group)
    assert (await trim(group, keep)).events == 0


async def test_senders_do_not_wait_for_what_is_retained(group: Group) -> None:
    """The limit of a partition counts what a group has not read, before a trim of a worker and after it."""
    await retention.provision(
        group.backend, GROUP, 1, retention.Retentions(Retention.of("1 hour", "retention"), None), again=False
    )
    await group.send(10, limit=10)
    await commit_all(group)
    await group.send(10, limit=10)
    assert await left(group) == 20
    append = streams.Append(0, "q", 1, 10, [b"1"])
    (reply,) = await streams.append_many(group.backend, STREAM, [append])
    assert (reply.code, reply.length) == (AppendCode.FULL, 10)
    assert await left(group) == 20, "a sender does not trim what is retained"
    assert (await trim(group, Keep(HOUR_MS))).events == 0
    (reply,) = await streams.append_many(group.backend, STREAM, [append])
    assert reply.code is AppendCode.FULL


async def test_without_retention_senders_make_room_again(group: Group) -> None:
    """The first trim after the end of the retention forgets what was retained."""
    await group.send(10)
    await commit_all(group)
    await trim(group, Keep(HOUR_MS))
    assert await group.backend.execute("HGET", COUNTS, "retained") == b"10"
    assert (await trim(group, Keep())).events == 10
    assert await group.backend.execute("HGET", COUNTS, "retained") is None


async def test_records_that_share_entries_are_counted_one_by_one(group: Group) -> None:
    appends = [streams.Append(0, "p", n, 0, [b"%d" % k for k in range(50)], n - 1, "json") for n in (1, 2)]
    first, second = await streams.append_many(group.backend, STREAM, appends)
    lock, entries = await group.own(), await streams.range_entries(group.backend, EVENTS, ZERO, None, 1)
    assert first.last_id is not None and second.last_id is not None
    whole = request(lock, entries, reads=[(ZERO, first.last_id)])
    assert (whole.new, whole.entries) == (first.last_id, 50)
    assert (await group.commit(whole)).code is CommitCode.OK
    await trim(group, Keep(HOUR_MS))
    assert await group.backend.execute("HGET", COUNTS, "retained") == b"50"


# -- acked logs --------------------------------------------------------------------------------


async def log_of(group: Group, raw: Raw, *ages_ms: int, rows: int = 10) -> None:
    """Write an acked log with entries of some rows each, committed so long ago."""
    await group.own()
    now_ms = await group.backend.time_ms()
    with raw.pipeline(transaction=False) as pipe:
        for at, age_ms in enumerate(ages_ms, 1):
            pipe.xadd(ACKED, {"rows": rows, "at": now_ms - age_ms, "batch": "x"}, id=f"{at * rows}-0")
        pipe.execute()
    raw.hset(GROUP.lock(0), "rows", len(ages_ms) * rows)


@pytest.mark.parametrize("old", [0, 1, 2, 5, 9, 10])
@pytest.mark.parametrize("rows", [1, 7])
async def test_rows_that_all_have_read_stay_until_they_are_old(
    group: Group, raw: Raw, old: int, rows: int
) -> None:
    """Ids of the log count rows, so the time is that of the commit."""
    await log_of(group, raw, *(2 * HOUR_MS for _ in range(old)), *(0 for _ in range(10 - old)), rows=rows)
    assert (await trim(group, Keep(acked_ms=HOUR_MS), ALL_ROWS)).acked == old
    assert (await trim(group, Keep(acked_ms=HOUR_MS), ALL_ROWS)).acked == 0


async def test_no_limit_drops_rows_that_a_reader_has_not_read(group: Group, raw: Raw) -> None:
    await log_of(group, raw, *([2 * HOUR_MS] * 10))
    assert (await trim(group, Keep(acked_ms=HOUR_MS, acked_max=0), 0)).acked == 0
    assert (await trim(group, Keep(acked_ms=HOUR_MS, acked_max=0), 45)).acked == 4


async def test_the_time_is_found_by_bisection(group: Group, raw: Raw) -> None:
    """Of ten thousand entries it asks for a few."""
    await log_of(group, raw, *range(10_000, 0, -1), rows=3)
    log: Any = raw.xrange(ACKED, "-", "+", 1)
    now_ms, first_ms = await group.backend.time_ms(), int(log[0][1][b"at"])
    raw.config_resetstat()
    keep = Keep(acked_ms=now_ms - first_ms - 5_000)
    done = await trimming.trim_many(group.backend, GROUP, {0: ALL_ROWS}, lambda _: keep)
    assert 4_900 < done[0].acked < 6_000
    stats = list(leaves(raw.info("commandstats"), "cmdstat_xrange"))
    assert 5 < sum(each["calls"] for each in stats) < 40


def leaves(info: Any, name: str) -> Iterator[Any]:
    """Return the values of a name in the reply to INFO, of one server or of each node."""
    for key, value in info.items():
        if key == name:
            yield value
        elif isinstance(value, dict):
            yield from leaves(value, name)


async def test_a_log_without_readers_holds_so_many_entries(group: Group, raw: Raw) -> None:
    await log_of(group, raw, *([0] * 10))
    assert (await trim(group, Keep(acked_ms=HOUR_MS, acked_max=4), ALL_ROWS)).acked == 6


async def test_commits_do_not_wait_for_rows_that_are_retained(group: Group) -> None:
    """The limit of the log counts what a reader has not read."""
    entries, lock = await group.begun(8)
    previous = lock.checkpoint

    async def commit(at: int, read: int) -> CommitCode:
        nonlocal previous
        one = request(lock, [entries[at]], rows=10, previous=previous, acked_limit=4, acked_trim_rows=-read)
        code = (await group.commit(one)).code
        previous = entries[at].id if code is CommitCode.OK else previous
        return code

    assert [await commit(at, 0) for at in range(5)] == [CommitCode.OK] * 4 + [CommitCode.FULL]
    assert [await commit(at, 20) for at in range(4, 7)] == [CommitCode.OK] * 2 + [CommitCode.FULL]
    assert await group.backend.execute("XLEN", ACKED) == 6, "no commit drops what is retained"


# -- declarations ------------------------------------------------------------------------------


def kept(*texts: str | None) -> retention.Retentions:
    return retention.Retentions(
        *(None if text is None else Retention.of(text, "retention") for text in texts)
    )


async def test_a_changed_retention_takes_effect_and_one_left_open_changes_nothing(group: Group) -> None:
    """Each start returns what was declared before it."""
    week, day, nothing = kept("7 days", "10 GB"), kept("1 day", None), kept(None, None)

    async def declare(mine: retention.Retentions, *, again: bool = False) -> retention.Retentions:
        return await retention.provision(group.backend, GROUP, 1, mine, again=again)

    assert await declare(week) == nothing
    assert await declare(nothing) == week
    assert await declare(day) == week
    assert await retention.read(group.backend, GROUP) == kept("1 day", "10 GB")
    assert await declare(week, again=True) == kept("1 day", "10 GB")
    assert await retention.read(group.backend, GROUP) == kept("1 day", "10 GB"), "it started before the other"


async def test_what_another_program_wrote_there_counts_as_nothing(group: Group, raw: Raw) -> None:
    raw.hset(STREAM.meta, "retention", "for ever")
    assert await retention.read(group.backend, GROUP) == kept(None, None)


async def test_a_size_is_measured_over_all_partitions(group: Group) -> None:
    for partition, count in enumerate((300, 100, 0)):
        if count:
            await group.send(count, partition)
    held = await retention.measure_stream(group.backend, STREAM, 3, size=True)
    assert [each.records for each in held] == [300, 100, 0]
    assert held[0].size > held[1].size > held[2].size == 0
