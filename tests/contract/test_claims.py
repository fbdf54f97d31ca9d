"""The store of the claim protocol, on real servers and in memory: the same effects, the same answers."""

from collections.abc import Sequence

import pytest

from streamworker.core.events import Effect
from streamworker.core.protocols.claim.events import (
    NO_ENTRY,
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
