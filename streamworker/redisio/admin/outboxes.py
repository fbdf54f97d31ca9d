"""What `doctor` and `repair` ask about outboxes: what waits, what was lost, and which targets know more."""

from dataclasses import dataclass

from streamworker.core.data.outbox import START, OutboxPosition, Standing, Target, left_of
from streamworker.redisio.data.outbox import read_chains, read_ends, read_heads
from streamworker.redisio.data.streams import set_field
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered


@dataclass(frozen=True, slots=True)
class Diverged:
    """A target that has records of a source which the source's server has lost."""

    partition: int
    """The source's partition."""
    to: Target
    stands: OutboxPosition
    """Where the target stands."""
    since: OutboxPosition
    """Where the source goes on."""


async def messages_waiting(backend: Backend, keys: GroupKeys, partitions: int) -> int:
    """Return how many messages wait in the outboxes of a group."""
    asked = [("XLEN", keys.outbox(p).messages) for p in range(partitions)]
    return sum(all_answered(await backend.pipeline(asked)))


async def find_diverged(backend: Backend, keys: GroupKeys, partitions: int) -> list[Diverged]:
    """Return the targets that take nothing more because they know more than their source."""
    found = await _find_diverged(backend, keys, partitions)
    # One that goes on may move between the reads; then it is not found again where it was.
    again = await _find_diverged(backend, keys, partitions) if found else []
    return [each for each in found if each in again]


async def _find_diverged(backend: Backend, keys: GroupKeys, partitions: int) -> list[Diverged]:
    found: list[Diverged] = []
    outboxes = [keys.outbox(p) for p in range(partitions)]
    for partition, heads in enumerate(await read_heads(backend, outboxes)):
        its = outboxes[partition]
        chains = await read_chains(backend, its) if heads.last else {}
        # The source compares a partition that takes no more although nothing waits for it (`left_of`).
        targets = chains.keys() | heads.positions.keys()
        ends = await read_ends(backend, keys.app, its.source, sorted(targets)) if targets else {}
        for to, (is_sealed, stands) in ends.items():
            chain, head = chains.get(to, []), heads.positions.get(to, START)
            left = left_of(heads.moved.get(to, stands), chain, head)
            if left.why is Standing.DIVERGED and (chain or is_sealed):
                since = chain[left.taken].since if chain else head
                found.append(Diverged(partition, to, stands, since))
    return found


async def accept_target(backend: Backend, keys: GroupKeys, found: Diverged) -> bool:
    """Let a target go on with what its source has; False if it has moved since the caller looked."""
    place, source = StreamKeys(keys.app, found.to.stream), keys.outbox(found.partition).source
    stood = "" if found.stands == START else str(found.stands)
    return await set_field(backend, place.taken(found.to.partition), source, stood, str(found.since))
