"""The model that the simulator acts on in place of Redis, held to real servers.

What the simulator proves about the protocols holds as far as this model does what the scripts do.
"""

from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest

from streamworker.testing import MemoryServer
from tests.contract.clocked import ClockedBackend
from tests.contract.twins import OF_GROUPS, OF_LOCKS, OF_PROTOCOLS, OF_RECORDS, Difference, Step, Twins, draw
from tests.planting import Plant, each_found_by, planted

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]

SEEDS = 6
STEPS = 160
ACKED_LIMIT = 2
SEEDS_IN_MEMORY = 2
IN_MEMORY = {*OF_LOCKS, *OF_RECORDS, *OF_GROUPS, *(each for some in OF_PROTOCOLS.values() for each in some)}
IN_MEMORY -= {"probe", "mend", "read"}
"""What a server in memory does as a real one."""
SOAK_SEEDS = 150
SEEDS_FOR_A_MISTAKE = 40
SHRINK_RUNS = 150
ANSWERS = {
    "membership": {
        *("DocumentRead", "DocumentChanged", "ChangeRefused", "lost: True", "lost: False"),
        *("PeersProbed", "LoadsRead", "repaired", "put aside"),
        *("said: beats", "said: loads", "said: beats, and no heartbeats"),
        *("LocksAnswered", "Acquired", "Held", "Stale", "LocksReleased", "released: True", "released: False"),
        *("append: OK", "append: DUP", "OK", "DUP", "FENCED", "GAP", "FULL"),
        *("OUTBOX", "forward: OK", "forward: DUP", "forward: OTHER"),
    },
    "claim": {"OwnershipListed", "PartitionsClaimed", "CheckpointsUpdated", "PartitionsGivenUp"},
    "lease": {"LeasesChallenged", "LeaseRaced", "LeasesUpdated"},
}
"""What the sequences of each protocol must have led to."""
NOT_IN_MEMORY = {"PeersProbed", "repaired", "put aside", "said: beats", "said: loads"}
NOT_IN_MEMORY |= {"said: beats, and no heartbeats"}


@pytest.fixture
async def clocked(redis_url: str, small_nodes: None) -> AsyncIterator[ClockedBackend]:
    """Our own connection to the server of this case, and its clock in our hands."""
    del small_nodes
    async with ClockedBackend.open(redis_url, name="twins") as opened:
        yield opened


async def difference(
    backend: ClockedBackend,
    protocol: str,
    steps: Sequence[Step],
    *,
    acked_limit: int = 0,
    met: set[str] | None = None,
    in_memory: bool = False,
) -> tuple[int, str] | None:
    """Do some steps at both; return at which one they differ, and how."""
    twins = Twins(backend, protocol, acked_limit, in_memory=in_memory)
    await twins.begin()
    try:
        for at, step in enumerate(steps):
            try:
                await twins.do(step)
            except Difference as found:
                return at, str(found)
    finally:
        await twins.end()
    if met is not None:
        met.update(twins.met)
    return None


async def smallest(backend: ClockedBackend, protocol: str, steps: list[Step], acked_limit: int) -> str:
    """Leave out steps while there is still a difference; say what is left."""
    told, length, at = "", len(steps), 0
    for _ in range(SHRINK_RUNS):
        fewer = steps[:at] + steps[at + length :]
        found = await difference(backend, protocol, fewer, acked_limit=acked_limit)
        if found is not None:
            steps, told = fewer[: found[0] + 1], found[1]
        else:
            at += length
        if at >= len(steps):
            if length == 1:
                break
            length, at = max(1, length // 4), 0
    return "\n".join([*map(str, steps), told])


@pytest.mark.parametrize("protocol", OF_PROTOCOLS)
async def test_the_model_answers_as_the_server_does(clocked: ClockedBackend, protocol: str) -> None:
    """And leaves the same behind: documents, heartbeats, messages, locks, entries, logs, hashes."""
    met = set[str]()
    for seed in range(SEEDS):
        steps, acked_limit = draw(Random(seed), protocol, STEPS), ACKED_LIMIT * (seed % 2)
        found = await difference(clocked, protocol, steps, acked_limit=acked_limit, met=met)
        if found is not None:
            told = await smallest(clocked, protocol, steps[: found[0] + 1], acked_limit)
            pytest.fail(f"seed {seed}, step {found[0]}: {found[1]}\nand with fewer steps:\n{told}")
    assert met >= ANSWERS[protocol]


@pytest.mark.parametrize("protocol", OF_PROTOCOLS)
async def test_the_server_in_memory_answers_as_the_model_does(protocol: str) -> None:
    """And so as a real server does; tests/redisio/test_fakeredis.py has what the model has not."""
    met = set[str]()
    with MemoryServer() as server:
        async with ClockedBackend.open(server.url, name="twins") as backend:
            for seed in range(SEEDS_IN_MEMORY):
                steps = [step for step in draw(Random(seed), protocol, STEPS) if step.what in IN_MEMORY]
                limit = ACKED_LIMIT * (seed % 2)
                assert not await difference(
                    backend, protocol, steps, acked_limit=limit, met=met, in_memory=True
                )
    assert met >= ANSWERS[protocol] - NOT_IN_MEMORY


@pytest.mark.parametrize(
    "what", ["lag, append, read", "flush, lag, append", "post, copy, flush, hear, fail over, hear"]
)
async def test_they_are_alike_after_a_failover_to_a_clock_that_is_behind(
    clocked: ClockedBackend, what: str
) -> None:
    """What is lost may come again under lower ids and at earlier times."""
    steps = [
        Step(each, 0 if place else 1_100, 0, 0, 1 if each == "read" else 11)
        for place, each in enumerate(what.split(", "))
    ]
    assert await difference(clocked, "membership", steps) is None


async def test_loads_without_heartbeats_are_alike(clocked: ClockedBackend) -> None:
    """They are left where both the document and the heartbeats were overwritten, until the next document."""
    steps = [Step("change", 1, 0, 0, 11), Step("beat", 0, 0, 0, 11), Step("damage", 0, 0, 0, 65)]
    steps += [Step("mend", 0, 1, 0, 10), Step("change", 0, 1, 0, 11)]
    assert await difference(clocked, "membership", steps) is None


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("protocol", OF_PROTOCOLS)
async def test_the_model_answers_as_the_server_does_for_long(clocked: ClockedBackend, protocol: str) -> None:
    for seed in range(1_000, 1_000 + SOAK_SEEDS):
        found = await difference(clocked, protocol, draw(Random(seed), protocol, 2 * STEPS))
        assert found is None, (seed, found)


@pytest.mark.full("draws histories for each mistake")
@each_found_by("a server")
async def test_a_mistake_that_is_planted_in_the_model_is_noticed(
    clocked: ClockedBackend, plant: Plant
) -> None:
    """A comparison that has never found a difference is not trusted."""
    with planted(plant):
        for seed in range(SEEDS_FOR_A_MISTAKE):
            if await difference(clocked, "membership", draw(Random(seed), "membership", STEPS)) is not None:
                await clocked.execute("FLUSHALL")  # It ended amid a call that is not done at the server.
                return
    pytest.fail(f"not noticed in {SEEDS_FOR_A_MISTAKE} sequences")
