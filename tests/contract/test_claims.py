"""The store of the claim protocol, on real servers and in memory: the same effects, the same answers."""

import asyncio
from collections.abc import Sequence

import pytest

from streamworker.core.events import Effect
from streamworker.core.protocols.claim.events import (
    NO_ENTRY,
    CheckpointsUpdated,
    ClaimPartitions,
    GiveUpPartitions,
    ListOwnership,
    OwnershipEntry,
    OwnershipListed,
    PartitionsClaimed,
    PartitionsGivenUp,
    StoreFailed,
    UpdateCheckpoints,
)
from streamworker.errors import BackendRefused
from streamworker.redisio.data import streams
from streamworker.redisio.group.operations import OPERATIONS
from tests.contract.support import GROUP, Group, Raw, everything, request

pytestmark = pytest.mark.anyio


async def claim(group: Group, owner: str, etags: dict[int, int]) -> PartitionsClaimed:
    answer = await group.do(ClaimPartitions(owner, etags))
    assert isinstance(answer, PartitionsClaimed)
    return answer


async def update(group: Group, owner: str, etags: dict[int, int]) -> CheckpointsUpdated:
    answer = await group.do(UpdateCheckpoints(owner, etags))
    assert isinstance(answer, CheckpointsUpdated)
    return answer


async def entries(group: Group) -> dict[int, OwnershipEntry]:
    listed = await group.do(ListOwnership())
    assert isinstance(listed, OwnershipListed)
    return {entry.partition: entry for entry in listed.entries}


async def test_an_empty_store_lists_nothing_but_the_partitions_of_the_stream(group: Group) -> None:
    """The number of partitions is read each time, and may have grown since."""
    for partitions in (0, 3, 5):
        if partitions:
            await streams.provision(group.backend, group.stream, 3, "json")
            await group.backend.execute("HSET", group.stream.meta, "partitions", partitions)
        listed = await group.do(ListOwnership())
        assert isinstance(listed, OwnershipListed)
        assert (listed.partitions, listed.entries) == (partitions, ())


async def test_claims_go_in_as_a_list_with_etags_and_the_winners_come_out(group: Group) -> None:
    first = await claim(group, "a.1", {0: NO_ENTRY, 1: NO_ENTRY})
    assert set(first.done) == {0, 1}
    assert first.refused == {}
    second = await claim(group, "b.2", {0: first.done[0], 1: NO_ENTRY, 2: NO_ENTRY, 3: 12345})
    assert set(second.done) == {0, 2}
    assert second.refused[3] is None, "an ETag for an entry that is not there"
    stands = second.refused[1]
    assert stands is not None
    assert (stands.owner, stands.etag, stands.level) == ("a.1", first.done[1], 0)
    assert {p: entry.owner for p, entry in (await entries(group)).items()} == {0: "b.2", 1: "a.1", 2: "b.2"}


async def test_of_two_claims_in_the_same_instant_one_wins(group: Group) -> None:
    """Both send the ETag that they read, and the store compares and sets in one step."""
    answers = await asyncio.gather(*(claim(group, f"w.{n}", {0: NO_ENTRY}) for n in range(8)))
    winners = [n for n, answer in enumerate(answers) if 0 in answer.done]
    assert len(winners) == 1
    assert (await entries(group))[0].owner == f"w.{winners[0]}"


async def test_an_etag_grows_with_each_change(group: Group, raw: Raw) -> None:
    """It starts from the server's time, so that it does so too after the store was lost."""
    etag = (await claim(group, "a.1", {0: NO_ENTRY})).done[0]
    for _ in range(3):
        renewed = (await update(group, "a.1", {0: etag})).done[0]
        assert renewed > etag
        etag = renewed
    raw.delete(GROUP.of_group("claims"))
    now_ms = await group.backend.time_ms()
    assert (await claim(group, "b.1", {0: NO_ENTRY})).done[0] >= now_ms
    raw.hset(GROUP.of_group("claims"), "last", "99999999999999")
    assert (await claim(group, "b.1", {1: NO_ENTRY})).done[1] == 100000000000000


async def test_only_the_owner_updates_a_checkpoint(group: Group) -> None:
    """Who lost its ownership is told who has it now, and changes nothing."""
    etag = (await claim(group, "a.1", {0: NO_ENTRY})).done[0]
    stolen = (await claim(group, "b.2", {0: etag})).done[0]
    before = await entries(group)
    for who, with_etag in (("a.1", etag), ("a.1", stolen), ("b.2", etag)):
        answer = await update(group, who, {0: with_etag})
        assert answer.done == {}
        assert answer.refused == {0: before[0]}
    assert await entries(group) == before
    assert (await update(group, "a.1", {7: 1})).refused == {7: None}


async def test_an_update_writes_the_checkpoint_and_renews_the_entry(group: Group) -> None:
    """The entry shows the checkpoint of the last commit; its time is the server's."""
    await group.register()
    sent = await group.send(3)
    etag = (await claim(group, "a.1", {0: NO_ENTRY})).done[0]
    first = (await entries(group))[0]
    assert first.sequence == "0-0", "the initial position: the earliest entry"
    lock = await group.own("a.1")
    await group.commit(request(lock, sent, owner="a.1"))
    await update(group, "a.1", {0: etag})
    second = (await entries(group))[0]
    assert second.sequence == str(sent[-1].id)
    assert second.modified_ms >= first.modified_ms
    assert abs(second.modified_ms - await group.backend.time_ms()) < 5_000


async def test_the_initial_position_is_the_earliest_or_the_one_that_the_user_gave(group: Group) -> None:
    sent = await group.send(3)
    await group.register(start=str(sent[1].id))
    await claim(group, "a.1", {0: NO_ENTRY})
    assert (await entries(group))[0].sequence == str(sent[1].id)


async def test_a_thief_takes_the_checkpoint_over(group: Group) -> None:
    """It is picked from the previous owner's last update, and so is where the lock lets it start."""
    await group.register()
    sent = await group.send(4)
    etag = (await claim(group, "a.1", {0: NO_ENTRY})).done[0]
    lock = await group.own("a.1")
    await group.commit(request(lock, sent[:2], owner="a.1"))
    etag = (await update(group, "a.1", {0: etag})).done[0]
    stolen = (await claim(group, "b.2", {0: etag})).done[0]
    assert (await entries(group))[0].sequence == str(sent[1].id)
    assert await group.release("a.1", lock.epoch)
    taken = await group.own("b.2", generation=stolen)
    assert taken.checkpoint == sent[1].id


async def test_only_own_entries_are_given_up_and_that_may_be_repeated(group: Group) -> None:
    """What is given up can be claimed at once, as if nobody had ever had it."""
    await claim(group, "a.1", {0: NO_ENTRY, 1: NO_ENTRY})
    await claim(group, "b.2", {2: NO_ENTRY})
    for _ in range(2):
        assert await group.do(GiveUpPartitions("a.1", (0, 2))) == PartitionsGivenUp((0, 2))
        assert set(await entries(group)) == {1, 2}
    assert 0 in (await claim(group, "b.2", {0: NO_ENTRY})).done


async def test_ownership_moves_when_memory_is_full(group: Group, full_memory: Raw) -> None:
    """Else nothing would be handled any more, and so nothing trimmed."""
    etag = (await claim(group, "a.1", {0: NO_ENTRY})).done[0]
    full_memory.config_set("maxmemory", 1)
    etag = (await update(group, "a.1", {0: etag})).done[0]
    assert (await claim(group, "b.2", {0: etag})).done
    await group.do(GiveUpPartitions("b.2", (0,)))
    full_memory.config_set("maxmemory", 0)
    assert await entries(group) == {}


async def test_what_another_program_wrote_is_no_entry(group: Group, raw: Raw) -> None:
    """A field that cannot be read is passed over, and a key of another type is named and kept."""
    raw.hset(GROUP.of_group("claims"), mapping={"0": "nonsense", "x": "1|2|0|0-0|w"})
    assert await entries(group) == {}
    assert 0 in (await claim(group, "a.1", {0: NO_ENTRY})).done
    raw.delete(GROUP.of_group("claims"))
    raw.set(GROUP.of_group("claims"), "text")
    before = everything(raw)
    for effect in EVERY_KIND:
        with pytest.raises(BackendRefused, match="claims"):
            await group.do(effect)
    assert everything(raw) == before


EVERY_KIND: Sequence[Effect] = (
    ListOwnership(),
    ClaimPartitions("a.1", {0: NO_ENTRY}),
    UpdateCheckpoints("a.1", {0: 1}),
    GiveUpPartitions("a.1", (0,)),
)


def test_no_answer_is_an_answer_of_its_own() -> None:
    """Whatever was asked; the core then lists what was done unheard."""
    assert {OPERATIONS[type(effect)].failed(effect) for effect in EVERY_KIND} == {StoreFailed()}
