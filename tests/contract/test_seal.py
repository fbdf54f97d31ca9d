"""A partition that is sealed takes nothing any more, from nobody, and is read and trimmed as before."""

import pytest

from streamworker.core.data.channel import AppendCode
from streamworker.core.data.entries import EntryId
from streamworker.core.data.placement import Placement
from streamworker.redisio.data import later, streams
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.data.later import digest_of
from streamworker.redisio.data.streams import Append, append_many
from streamworker.redisio.scripts import SEAL
from streamworker.redisio.wire.durability import MEMORY
from tests.contract.support import GROUP, OTHER_GROUP, STREAM, Group, Raw, request

pytestmark = pytest.mark.anyio

EVENTS, COUNTS = STREAM.events(0), STREAM.counts(0)
TOP = "18446744073709551615-18446744073709551615"


async def seal(group: Group, map: str = "8+12") -> tuple[EntryId, list[bytes]]:
    """Seal the partition; return its last id before that, and the groups that are listed."""
    (reply,) = await group.backend.run_many(SEAL, [SEAL.at(GROUP, 0, map=map)])
    code, last, names, _ = reply
    assert code == b"OK"
    return EntryId.parse(last), names


async def append(group: Group, through: int, since: int) -> AppendCode:
    """Append a record of one producer."""
    one = Append(0, "p", through, 0, [(b"x", None)], since)
    (reply,) = await append_many(group.backend, STREAM, [one])
    return reply.code


@pytest.mark.parametrize(
    "words",
    [
        ["*"],
        ["NOMKSTREAM", "*"],
        ["MAXLEN", "1", "*"],
        ["99999999999999-1"],
        ["99999999999999-*"],
        ["18446744073709551615-*"],
        [TOP],
    ],
)
async def test_redis_refuses_what_any_program_adds(group: Group, raw: Raw, words: list[str]) -> None:
    """With an id of its own or without; and nothing is trimmed by it."""
    await group.register()
    await group.send(3)
    await seal(group)
    before = raw.xrange(EVENTS)
    with pytest.raises(Exception, match=r"exhausted the last possible ID|equal or smaller"):
        raw.execute_command("XADD", EVENTS, *words, "v", "x")
    assert raw.xrange(EVENTS) == before


async def test_what_was_taken_is_known_and_what_follows_is_answered_sealed(group: Group) -> None:
    """By each script that adds records, or keeps one for later."""
    await group.register()
    assert await append(group, 1, 0) is AppendCode.OK
    digest = digest_of(b"ann", "a")
    fields = [b"v", b"x"]
    once = later.send_once(STREAM, 0, digest, "c1", fields, window_ms=60_000, limit=0)
    assert (await once.run(group.backend, MEMORY)).code is AppendCode.OK
    due = later.schedule(
        STREAM, 0, digest, "c1", fields, due=("after", 0), named=("a", b"ann"), replace=False, limit=0
    )
    assert (await due.run(group.backend, MEMORY)).code is AppendCode.OK
    await seal(group)
    assert await append(group, 1, 0) is AppendCode.DUP
    assert await append(group, 3, 2) is AppendCode.OTHER
    assert await append(group, 2, 1) is AppendCode.SEALED
    assert (await once.run(group.backend, MEMORY)).code is AppendCode.DUP
    other = later.send_once(STREAM, 0, digest_of(b"ann", "b"), "c2", fields, window_ms=60_000, limit=0)
    assert (await other.run(group.backend, MEMORY)).code is AppendCode.SEALED
    assert (await due.run(group.backend, MEMORY)).code is AppendCode.OK
    new = later.schedule(
        STREAM, 0, digest_of(b"ann", "b"), "c3", fields,
        due=("after", 0), named=("b", b"ann"), replace=False, limit=0,
    )  # fmt: skip
    assert (await new.run(group.backend, MEMORY)).code is AppendCode.SEALED
    moved = await later.move_due(group.backend, STREAM, [0], limit=0, window_ms=60_000)
    assert moved[0].records == 0
    assert [each.id for each in await later.waiting(group.backend, STREAM, 0)] == ["a"]


async def test_a_seal_is_repeated_and_says_the_last_id_and_the_groups(group: Group, raw: Raw) -> None:
    """The first note stays, whoever seals again."""
    await group.register()
    await group.other(OTHER_GROUP).register()
    last = (await group.send(3))[-1].id
    assert await seal(group) == (last, [b"price", b"audit"])
    assert await seal(group, "2 8+20") == (last, [b"price", b"audit"])
    assert raw.hget(COUNTS, "sealed") == f"{last} 8+12".encode()
    info = raw.xinfo_stream(EVENTS)
    assert (info["last-generated-id"], info["entries-added"], info["length"]) == (TOP.encode(), 3, 3)


async def test_a_partition_that_nobody_has_written_to_is_sealed(group: Group, raw: Raw) -> None:
    """It holds nothing, and no lag."""
    assert await seal(group) == (EntryId.parse("0-0"), [])
    await group.register()
    assert await append(group, 1, 0) is AppendCode.SEALED
    info = raw.xinfo_stream(EVENTS)
    assert (info["length"], info["entries-added"]) == (0, 0)
    assert raw.hget(GROUP.lock(0), "entries") == b"0"


async def test_a_group_that_begins_at_the_end_begins_at_the_last_record(group: Group, raw: Raw) -> None:
    """Not at the seal, where nothing can be committed."""
    last = (await group.send(3))[-1].id
    await seal(group)
    assert await streams.register(group.backend, GROUP, Placement(1), "latest") == {0: last}
    assert raw.hget(GROUP.lock(0), "entries") == b"3"


async def test_what_is_sealed_is_committed_and_trimmed_to_the_end(group: Group, raw: Raw) -> None:
    """And stays sealed while it is empty, and when it is loaded from what a server stores."""
    await group.register()
    entries = await group.send(5)
    await seal(group)
    lock = await group.own()
    assert (await group.commit(request(lock, entries))).code is CommitCode.OK
    raw.xtrim(EVENTS, maxlen=0)
    stored = raw.dump(EVENTS)
    assert stored is not None
    raw.delete(EVENTS)
    raw.restore(EVENTS, 0, stored)
    assert raw.xlen(EVENTS) == 0
    assert await append(group, 2, 1) is AppendCode.SEALED
    with pytest.raises(Exception, match="exhausted the last possible ID"):
        raw.xadd(EVENTS, {"v": "x"})


async def test_a_seal_that_was_lost_is_set_again_at_the_present_end(group: Group, raw: Raw) -> None:
    """Another program has deleted the stream, or the note of the seal."""
    await group.send(2)
    await seal(group)
    raw.delete(EVENTS)
    added = EntryId.parse(raw.xadd(EVENTS, {"v": "x"}))
    assert await append(group, 9, 1) is AppendCode.SEALED
    assert (await seal(group, "8+12"))[0] == added
    raw.hdel(COUNTS, "sealed")
    assert (await seal(group, "8+12"))[0] == added
    assert raw.hget(COUNTS, "sealed") == f"{added} 8+12".encode()
