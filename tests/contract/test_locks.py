"""Who gets a lock, who keeps it, and who is fenced."""

from dataclasses import replace

import pytest

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.events import AcquireLocks, LocksAnswered, MarkLock
from streamworker.core.ownership.locks import Acquired, Held
from streamworker.errors import BackendRefused
from streamworker.redisio.data import streams
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.group import locks
from streamworker.redisio.group.loads import read_lags
from streamworker.redisio.group.requests import make_request
from streamworker.runtime.watch.watchdog import STALLED
from tests.contract.support import GENERATION, GROUP, Group, Raw, everything, request

pytestmark = pytest.mark.anyio


async def test_an_acquisition_after_an_order_fences_what_its_owner_began_before(group: Group) -> None:
    """The call may be an old one that arrives late: no batch is committed once a pause shows as obeyed.

    Its owner does not know the new epoch, and releases the lock all the same; an owner before it does not.
    """
    first = await group.own("w1")
    assert await group.release("w1", first.epoch)
    held, entries = await group.own("w1"), await group.send(1)
    await make_request(group.backend, group.keys, [0], "pause", who="ann", why="")
    late = await group.own("w1")
    assert (late.is_paused, late.epoch > held.epoch) == (True, True)
    assert await group.own("w1") == late, "once an order"
    assert (await group.commit(request(held, entries))).code is CommitCode.FENCED
    assert not await group.release("w1", first.epoch)
    assert await group.release("w1", held.epoch)
    assert (await group.lock()).owner == ""


async def test_a_mark_shows_what_the_owner_does(group: Group) -> None:
    """State and reason are for people; a mark of somebody else changes nothing."""
    lock = await group.own("w1")
    await locks.mark_many(group.backend, GROUP, [MarkLock(0, "w1", lock.epoch, "halted", "ValueError: no")])
    view = await group.lock()
    assert (view.state, view.reason) == ("halted", "ValueError: no")
    await locks.mark_many(group.backend, GROUP, [MarkLock(0, "w2", lock.epoch, "running", "")])
    await locks.mark_many(group.backend, GROUP, [MarkLock(0, "w1", lock.epoch + 1, "running", "")])
    assert (await group.lock()).state == "halted"
    retry = MarkLock(0, "w1", lock.epoch, "retrying", "ConnectionError: no", (3, 5_000, 48_000))
    await locks.mark_many(group.backend, GROUP, [retry], clock_ms=10_000)
    view = await group.lock()
    assert view.retry is not None and view.retry.attempt == 3
    assert view.retry.next_ms - view.retry.since_ms == 43_000


async def test_one_broken_lock_does_not_stop_the_others(group: Group, raw: Raw) -> None:
    """A key that another program wrote to is left out of the answer; alone, it is an error."""
    raw.set(GROUP.lock(1), "mine")
    answer = await group.do(AcquireLocks((0, 1, 2), "w1", 1, ("w1",)))
    assert isinstance(answer, LocksAnswered)
    assert sorted(answer.replies) == [0, 2]
    with pytest.raises(BackendRefused, match="lock:price holds another type"):
        await group.own(partition=1)


@pytest.mark.parametrize("epoch", ["x", "", "-3", "007", "9" * 19])
async def test_an_epoch_that_another_program_wrote_over_begins_anew_and_fences_who_had_it(
    group: Group, raw: Raw, epoch: str
) -> None:
    """Nobody can commit at it, so whoever asks has the lock, its owner too; and it is above all before."""
    entries = await group.send(1)
    first = await group.own("w1")
    raw.hset(GROUP.lock(0), "epoch", epoch)
    assert (await group.commit(request(first, entries, owner="w1"))).code is CommitCode.FENCED
    again = await group.own("w1")
    assert again.epoch > first.epoch
    raw.hset(GROUP.lock(0), "epoch", epoch)
    other = await group.acquire("w2", live=["w1"])
    assert isinstance(other, Acquired)
    assert other.epoch >= again.epoch
    assert (await group.commit(request(again, entries, owner="w1"))).code is CommitCode.FENCED
    assert (await group.commit(request(other, entries, owner="w2"))).code is CommitCode.OK


async def test_a_checkpoint_is_moved_where_the_epoch_was_written_over(group: Group, raw: Raw) -> None:
    """A reset is what an operator reaches for then."""
    first = await group.own("w1")
    await group.release("w1", first.epoch)
    raw.hset(GROUP.lock(0), "epoch", "x")
    assert await locks.move_checkpoint(group.backend, GROUP, 0, ZERO, entries=0) == ZERO
    assert (await group.own("w1")).epoch > first.epoch


async def test_what_is_waited_for_and_the_generation_may_be_written_over(group: Group, raw: Raw) -> None:
    await group.own("w1")
    others: list[str | int] = ["generation", "x", "wanted_since", "x", "wanted_at", "x", "wanted_in", "x"]
    raw.hset(GROUP.lock(0), items=others)
    assert isinstance(await group.acquire("w2", live=["w1"]), Held)
    raw.hset(GROUP.lock(0), items=others)
    await group.own("w1")
    assert raw.hget(GROUP.lock(0), "generation") == b"%d" % GENERATION


async def test_a_record_to_be_set_aside_that_is_no_id_counts_for_nothing(group: Group, raw: Raw) -> None:
    """The others are set aside, and the lock is shown."""
    await group.own("w1")
    raw.hset(GROUP.lock(0), "aside", "x by me\n\n7-0 by you")
    assert (await group.own("w1")).aside == {EntryId(7, 0): "by you"}
    assert (await group.lock()).aside == {EntryId(7, 0): "by you"}


@pytest.mark.parametrize("field", ["checkpoint", "entries", "rows"])
async def test_a_lock_whose_place_was_written_over_is_not_taken(group: Group, raw: Raw, field: str) -> None:
    """What was done is not to be guessed: the key is named, and stays as it is, of a free lock too."""
    first = await group.own("w1")
    await group.release("w1", first.epoch)
    raw.hset(GROUP.lock(0), field, "x")
    before = raw.hgetall(GROUP.lock(0))
    with pytest.raises(BackendRefused, match=r"lock:price holds another type .* or other fields"):
        await group.own("w2")
    assert raw.hgetall(GROUP.lock(0)) == before


async def test_there_is_no_lock_of_a_group_that_never_was(group: Group) -> None:
    assert await locks.read_lock(group.backend, GROUP, 0) is None
    assert await locks.move_checkpoint(group.backend, GROUP, 0, ZERO, entries=0) is None


async def test_a_checkpoint_is_moved_back_while_nobody_owns_it(group: Group, raw: Raw) -> None:
    """After a reset the entries are read again, and the lag shows it."""
    entries, lock = await group.begun(5)
    await group.commit(request(lock, entries))
    await group.release("w1", lock.epoch)

    counted = await streams.entries_up_to(group.backend, GROUP, 0, entries[1].id)
    before = await locks.move_checkpoint(group.backend, GROUP, 0, entries[1].id, entries=counted)
    assert before == entries[-1].id
    again = await group.own()
    assert again.checkpoint == entries[1].id
    assert lock.epoch < again.reset < again.epoch and (await group.lock()).reset == again.reset
    (info,) = raw.xinfo_groups(GROUP.events(0))
    assert info["last-delivered-id"] == str(entries[1].id).encode()
    assert await read_lags(group.backend, GROUP, [0]) == {0: 3}


async def test_a_checkpoint_is_not_moved_under_an_owner(group: Group) -> None:
    """The reset is refused, unless it names the owner as one that is known to be dead; then that
    one's commits are fenced.
    """
    entries, lock = await group.begun(1)
    assert await locks.move_checkpoint(group.backend, GROUP, 0, ZERO, entries=0) == Held("w1", 0)
    assert await locks.move_checkpoint(group.backend, GROUP, 0, ZERO, entries=0, owner="w1") == ZERO
    assert (await group.commit(request(lock, entries, owner="w1"))).code is CommitCode.FENCED


async def test_a_checkpoint_is_moved_under_an_owner_that_has_paused(group: Group) -> None:
    """Not before the owner has obeyed. It stays the owner, and resumes from where the checkpoint is then."""
    entries, lock = await group.begun(3)
    await make_request(group.backend, GROUP, [0], "pause", who="ann", why="")
    assert await locks.move_checkpoint(group.backend, GROUP, 0, ZERO, entries=0) == Held("w1", 0)
    assert (await group.commit(request(lock, entries))).code is CommitCode.OK
    paused = await group.own("w1")
    assert paused.is_paused and paused.checkpoint == entries[-1].id
    assert await locks.move_checkpoint(group.backend, GROUP, 0, entries[0].id, entries=1) == entries[-1].id
    view = await group.lock()
    assert (view.owner, view.state, view.checkpoint) == ("w1", "paused", entries[0].id)
    for late in (lock, paused):
        late = replace(late, checkpoint=entries[0].id)
        assert (await group.commit(request(late, entries[1:]))).code is CommitCode.FENCED
    await make_request(group.backend, GROUP, [0], "resume", who="ann", why="")
    assert await locks.move_checkpoint(group.backend, GROUP, 0, ZERO, entries=0) == Held("w1", 0)
    resumed = await group.own("w1")
    assert not resumed.is_paused and resumed.checkpoint == entries[0].id
    assert paused.epoch < resumed.reset < resumed.epoch
    assert (await group.commit(request(resumed, entries[1:]))).code is CommitCode.OK


# -- stalls: shown in the lock, and never over what says more ---------------------------------------


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
