"""The store of the claim protocol, on real servers and in memory: the same effects, the same answers."""

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
    UpdateCheckpoints,
)
from streamworker.errors import BackendRefused
from streamworker.redisio.data import streams
from tests.contract.support import GROUP, Group, Raw, everything

pytestmark = pytest.mark.anyio


async def claim(group: Group, owner: str, etags: dict[int, int]) -> PartitionsClaimed:
    answer = await group.do(ClaimPartitions(owner, etags))
    assert isinstance(answer, PartitionsClaimed)
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


async def test_the_initial_position_is_the_earliest_or_the_one_that_the_user_gave(group: Group) -> None:
    sent = await group.send(3)
    await group.register(start=str(sent[1].id))
    await claim(group, "a.1", {0: NO_ENTRY})
    assert (await entries(group))[0].sequence == str(sent[1].id)


async def test_an_entry_changes_only_for_who_knows_its_etag_and_its_owner_renews_it(group: Group) -> None:
    """A new partition is claimed by who says that there is no entry; of two, the first."""
    first = (await claim(group, "a.1", {0: NO_ENTRY, 1: NO_ENTRY})).done
    late = await claim(group, "b.1", {0: NO_ENTRY, 2: NO_ENTRY})
    assert (set(late.done), late.refused[0]) == ({2}, (await entries(group))[0])
    stolen = (await claim(group, "b.1", {0: first[0]})).done[0]
    assert stolen > first[0]
    (sent,) = await group.send(1)
    await group.register(start=str(sent.id))
    renewed = await group.do(UpdateCheckpoints("b.1", {0: stolen, 1: first[1]}))
    assert isinstance(renewed, CheckpointsUpdated)
    assert (set(renewed.done), set(renewed.refused)) == ({0}, {1})
    assert (await entries(group))[0].sequence == str(sent.id)
    await group.do(GiveUpPartitions("b.1", (0, 1)))
    assert {each.partition: each.owner for each in (await entries(group)).values()} == {1: "a.1", 2: "b.1"}


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
