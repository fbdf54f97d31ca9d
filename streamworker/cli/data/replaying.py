"""Replays dead letters, also those of partitions that are sealed because their stream has grown."""

import asyncio
import random
from collections.abc import Mapping

from streamworker.cli.data.letters import Fields
from streamworker.cli.data.wording import decoded
from streamworker.cli.support import group_keys
from streamworker.core.data.entries import EntryId
from streamworker.core.data.placement import canonical_key
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.errors import RecordError
from streamworker.records.entries import REPLAYED_FOR
from streamworker.redisio.data.dead import StoredLetter, drop_dead, replay_dead, show_dead
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.send.lanes import Declaration
from streamworker.runtime.send.named import NamedSends
from streamworker.settings import Settings

TIMEOUT_S = 30.0
"""How long one letter may wait for an answer, or for the partitions that follow."""


async def replay(
    backend: Backend,
    spec: ProcessorSpec,
    settings: Settings,
    partition: int,
    page: Mapping[EntryId, Fields | None],
) -> dict[EntryId, EntryId | None]:
    """Replay letters of one partition; return the id of each new entry, None for a letter that is not there.

    Where the partition is sealed, a letter goes to the one that has its key now, and is deleted after that.
    It is sent with an id, so that what was sent and not deleted is not sent again. Letters of two groups may
    have one id, so the group is part of it.
    """
    stream, keys = spec.stream, group_keys(spec)
    if partition in stream.placement.active:
        return await replay_dead(backend, keys, partition, list(page), page)
    letters = await show_dead(backend, keys, partition, list(page))
    routed = {name: _key_of(stream, letter, page[name] or letter.fields) for name, letter in letters.items()}
    sends = NamedSends(Declaration(backend, stream, settings), random.Random())

    async def send(name: EntryId) -> EntryId:
        fields = {REPLAYED_FOR: spec.name.encode(), **(page[name] or letters[name].fields)}
        id = f"dead:{spec.name}:{partition}:{name}"  # noqa: A001
        _, entry_id, _ = await sends.send(routed[name], id, (fields, None), "raise", TIMEOUT_S)
        return entry_id

    entries = dict(zip(routed, await asyncio.gather(*map(send, routed)), strict=True))
    await drop_dead(backend, keys, partition, list(entries))
    return {name: entries.get(name) for name in page}


def _key_of(stream: StreamSpec, letter: StoredLetter, fields: Mapping[bytes, bytes]) -> bytes | None:
    record = decoded(stream, fields)
    if isinstance(record, list):
        record = record[0] if len(record) == 1 else None
    if record is None:
        raise RecordError(
            f"The record of dead letter {letter.name} cannot be read, so that nothing says which partition "
            "has its key since the stream has grown. It was not replayed.",
            remedy="Mend it: `dead export`, edit its line, and `dead replay --from`. Or drop it.",
        )
    return canonical_key(stream.key(record))
