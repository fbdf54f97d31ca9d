"""Rows F23-F26, F33 and F34 of the fault matrix: what others write into our keys, and clocks.

The soak has the counts and the limits that are promised; docs/reliability.md has the figures.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from streamworker.cli.doctor.checks import Check
from streamworker.cli.doctor.command import in_redis
from streamworker.core.data.placement import Placement
from streamworker.core.protocols.membership.document import Membership
from streamworker.errors import BackendRefused, CoordinationError
from streamworker.redisio.group.operations import KEY_TABLE
from tests.chaos.figures import record
from tests.chaos.forked import Forked
from tests.chaos.nemesis import MembershipCorrupt, Poisoned
from tests.chaos.rows_app import PROCESSOR, Item, make_app
from tests.chaos.team import PATIENCE_S, Team, now_ms, setting
from tests.chaos.times import CLAIM, FAST, LEASE, STEADY
from tests.chaos.yard import Yard, gathered, scene, sized

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(240),
    pytest.mark.full("rows of the fault matrix wait for what a fault leads to"),
]

SESSION_MS = setting(FAST, "session_timeout_ms")
DEAD_MS = setting(FAST, "dead_after_ms")


# -- F23: the membership document --------------------------------------------------------------------


MENDED_MS = 2 * SESSION_MS


def damaged(document: bytes, rng: random.Random) -> bytes:
    """Return a document that cannot be acted on; which there are is shown with the document itself."""
    fields = json.loads(document)
    changes = {
        "members": rng.choice(([], None, fields["members"] * 2)),
        "owners": rng.choice(([], [99] * 4, [None] * 4)),
        "partitions": rng.choice((0, 10**9, "4")),
        "strategy": rng.choice(("", 7, None)),
    }
    name = rng.choice(sorted(changes))
    changed = json.dumps({**fields, name: changes[name]}, separators=(",", ":")).encode()
    cut = document[: rng.randrange(len(document))]
    return rng.choice((cut, changed, b"x" * 1_000_000, rng.choice(MembershipCorrupt.WRONG)))


async def damage(team: Team, document: bytes) -> None:
    """Write over the document: a string, or now and then a value of another type."""
    wrong = team.rng.choice(sorted(set(WRONG) - {"string"}))
    async with team.raw.pipeline(transaction=True) as swap:
        swap.delete(team.keys.members)
        if team.rng.random() < 0.2:
            WRONG[wrong](swap, team.keys.members)
        else:
            swap.set(team.keys.members, damaged(document, team.rng))
        await swap.execute()


@sized(
    small={"teams": 1, "count": 5, "how": "", "environ": FAST},
    full={"teams": 4, "count": 50, "how": "", "environ": FAST},
    full_at_default_settings={"teams": 2, "count": 20, "how": "; at default settings", "environ": {}},
    minutes=30,
)
async def test_a_damaged_membership_is_mended_by_its_group_and_ends_nobody(
    yard: Yard, *, teams: int, count: int, how: str, environ: Mapping[str, str]
) -> None:
    """All go on with what they have. One of them, whose heartbeat notices it, writes the document anew."""
    samples: list[float] = []
    moved_nothing = 0

    async def corrupts(team: Team) -> None:
        nonlocal moved_nothing
        async with team.at_work("w0", "w1"):
            before = {p: lock.epoch for p, lock in enumerate(await team.locks())}
            for _ in range(count):
                document: Any = await team.raw.get(team.keys.members)
                was = Membership.parse(document).generation
                await damage(team, document)
                wrong_at = now_ms()
                await team.until("the document is repaired", partial(names_all, team, was), poll_s=0.01)
                samples.append(now_ms() - wrong_at)
                assert await team.raw.exists(team.keys.damaged), "what stood there was not kept"
                await asyncio.sleep(team.rng.uniform(0.3, 0.8))
                await team.settled()
                await team.resumed_ms(wrong_at)
                after = {p: lock.epoch for p, lock in enumerate(await team.locks())}
                moved_nothing += before == after
                before = after
        assert team.logged("membership_unreadable")

    await yard.many(teams, corrupts, "corrupt", environ=environ)
    yard.record(
        "F23",
        f"truncated, other types, doubled ids, no UTF-8, a megabyte{how}",
        target=f"repaired by the group itself <= {MENDED_MS} ms; nobody ends",
        most_ms=MENDED_MS,
        samples_ms=samples,
        said=f"nobody ended, 0 violations; no partition changed hands in {moved_nothing}",
        strict=True,
    )


async def names_all(team: Team, above: int) -> bool:
    """Whether there is a later document, which can be read and has all workers."""
    if await team.raw.type(team.keys.members) != b"string":
        return False
    document: Any = await team.raw.get(team.keys.members)
    try:
        now = Membership.parse(document or b"")
    except CoordinationError:
        return False
    return now.generation > above and {member.name for member in now.members} == set(team.workers)


# -- F24: poison -----------------------------------------------------------------------------------


@sized(small={"teams": 1, "count": 15}, full={"teams": 4, "count": 250}, minutes=15)
async def test_entries_that_are_no_records_hold_nobody_up(yard: Yard, *, teams: int, count: int) -> None:
    """Each goes to the dead letters; within a second of its XADD an entry behind it is committed."""
    samples: list[float] = []

    async def poisons(team: Team) -> None:
        async with team.at_work("w0", "w1", per_second=100):
            for _ in range(count):
                p = team.rng.randrange(team.partitions)
                poison: Any = await team.raw.xadd(team.keys.events(p), team.rng.choice(POISON))
                since = now_ms()
                is_past = partial(_is_past, team, p, poison.decode())
                await team.until("entries behind the poison are committed", is_past)
                samples.append(now_ms() - since)
        dead = sum([await team.raw.xlen(team.keys.dead(p)) for p in range(team.partitions)])
        assert dead == count, f"{dead} dead letters of {count}"

    await yard.many(teams, poisons, "poisoned")
    yard.record(
        "F24",
        "no JSON, other types, missing fields, deep, 3 MB; as dead letters",
        target="order kept; what is behind is committed <= 1 s",
        most_ms=1_000,
        samples_ms=samples,
        said="each is a dead letter, 0 violations",
    )


POISON: list[dict[Any, Any]] = [*Poisoned.POISON, {"v": b"x" * 3_000_000}]


async def _is_past(team: Team, partition: int, entry_id: str) -> bool:
    await team.read_logs()
    log = team.entries[partition]
    return bool(log) and _number(log[-1].last) > _number(entry_id)


def _number(text: str) -> tuple[int, int]:
    ms, _, number = text.partition("-")
    return int(ms), int(number)


# -- F25: other types at our keys --------------------------------------------------------------------

WRONG: dict[str, Callable[[Any, str], Any]] = {
    "string": lambda raw, key: raw.set(key, "x"),
    "list": lambda raw, key: raw.rpush(key, "x"),
    "set": lambda raw, key: raw.sadd(key, "x"),
    "zset": lambda raw, key: raw.zadd(key, {"x": 1}),
    "hash": lambda raw, key: raw.hset(key, "x", "y"),
    "stream": lambda raw, key: raw.xadd(key, {"x": "y"}),
}


PARTITIONS_OWN = {"events", "producer", "lock", "acked", "dead", "state"}
GROUPS_OWN = {"stream", "members", "damaged", "beats", "control", "loads", "readers", "holds", "schemas"}
PROTOCOLS_OWN = {"claims": "claim", "grab": "lease", "allocation": "lease"}
"""Keys of groups that coordinate otherwise."""
ALL_WAIT = {"claims"}
"""Nobody can renew a claim without these, so all stop when theirs are over, and wait until they are right."""
KEPT_MS = dict.fromkeys(GROUPS_OWN, setting(STEADY, "session_timeout_ms")) | {
    "claims": setting(CLAIM, "claim_expiry_ms"),
    "grab": setting(LEASE, "lease_max_ms"),
    "allocation": setting(LEASE, "lease_max_ms"),
}
"""For so long a worker keeps its partitions, whatever stands at a key of its group."""
MENDED = {"members": "in place of the membership document", "beats": "heartbeats_mended"}
"""The group puts these right by itself, and keeps what stood there under a key of its own: row F23. What a
worker says of it."""
USED_AGAIN = {"control": "control_stream_readable", "loads": "key_right_again"}
"""What a worker says when these are right again, which it can do without."""
UNSAID = {"schemas", "stream", "damaged", "producer"}
"""No worker says the name of these: `doctor` does. A producer, whose sends are refused, names its own key."""


async def place_of(team: Team, kind: str) -> tuple[str, str]:
    """Return a key of some kind, and its type; of partition 0 where each has one."""
    keys, key = team.keys, team.keys.of_group(kind)
    if kind == "stream":
        key = keys.meta
    elif kind == "producer":
        found: list[Any] = await team.raw.keys(f"{keys.events(0).removesuffix('events')}producer:*")
        key = found[0].decode()
    elif kind in PARTITIONS_OWN:
        key = getattr(keys, kind)(0)
    return key, next(row.type.partition(",")[0] for row in KEY_TABLE if row.kind == kind)


async def wrong_types(team: Team, cases: Sequence[tuple[str, str]], outcomes: Counter[str]) -> None:
    """Put a value of another type in a key's place, and put it right again; count who named the key.

    All partitions but the key's own must go on, for longer than a session. In few cases all wait.
    """
    async with team.at_work("w0", "w1"):
        await team.first_commits(now_ms(), range(team.partitions))
        for kind, wrong in cases:
            key, right = await place_of(team, kind)
            if wrong == right:
                continue
            said = {worker: len(worker.log()) for worker in team.all_workers}
            spare = f"{key}:spare"
            before = await team.settled()
            was = await team.raw.exists(key)
            async with team.raw.pipeline(transaction=True) as swap:
                if was:
                    swap.rename(key, spare)
                WRONG[wrong](swap, key)
                await swap.execute()
            since, named_by = now_ms(), []
            if kind in MENDED:
                await team.until(f"{key} is put right", partial(has_type, team, key, right))
                was = False
            elif kind == "producer":
                assert key in await refusal(team), f"a send does not name {key}"
                named_by += ["producer"]
            else:
                assert await is_named_by_doctor(team, key), f"doctor does not name {key}"
                named_by += ["doctor"]
            if kind not in UNSAID:
                # A partition's key is looked at when it gets something, which takes a moment.
                names_it = partial(is_named_in_logs, team, MENDED.get(kind, key), said)
                await team.until(f"a worker names {key}, a {wrong}", names_it)
                named_by += ["worker"]
            others = range(1, team.partitions) if kind in PARTITIONS_OWN else range(team.partitions)
            # What needs a heartbeat, or a claim, goes on for its time yet: that is not what is asked.
            session_ms = KEPT_MS.get(kind, 0)
            if kind in ALL_WAIT:
                await asyncio.sleep(2 * session_ms / 1000)
                goes_on = await works_on(team, since + 2 * session_ms, others, 1.0)
                assert not goes_on, f"{key}, a {wrong}, stops nobody: docs/protocols.md says that it does"
                outcomes["waited"] += 1
            else:
                went_on = await works_on(team, since + session_ms, others, PATIENCE_S)
                assert went_on, f"{key}, a {wrong}, stops partitions that are not its own"
                outcomes.update(["went on", *named_by])
            if kind in GROUPS_OWN | ALL_WAIT:  # Races move partitions by themselves.
                assert await team.locks() == before, f"{key}, a {wrong}: a partition moved"
            async with team.raw.pipeline(transaction=True) as swap:
                swap.delete(spare if kind in MENDED else key)
                if was:
                    swap.rename(spare, key)
                await swap.execute()
            if kind in USED_AGAIN:
                says_so = partial(is_named_in_logs, team, USED_AGAIN[kind], said)
                await team.until(f"a worker uses {key} again", says_so)
            is_on = await works_on(team, now_ms(), range(team.partitions), PATIENCE_S)
            assert is_on, f"work does not go on when {key} is put right"


async def works_on(team: Team, since_ms: float, partitions: Collection[int], timeout_s: float) -> bool:
    """Whether records that were sent after a moment are committed, in each of some partitions."""
    sent_then = f"{since_ms:.0f}-0"

    async def all_are_past() -> bool:
        return all([await _is_past(team, p, sent_then) for p in partitions])

    try:
        await team.until(f"partitions {sorted(partitions)} work on", all_are_past, timeout_s)
    except AssertionError:
        return False
    return True


async def is_named_by_doctor(team: Team, key: str) -> bool:
    """Whether `doctor` says that a key has another type."""
    app = make_app(
        {"ROWS_APP": team.name, "ROWS_PARTITIONS": str(team.partitions), "STREAMWORKER_REDIS_URL": team.url}
    )
    # What is kept of a damage may be of any type; that it is there at all is worth a word.
    is_kept = key == team.keys.damaged
    name, verdict = (f"membership {PROCESSOR}", "warn") if is_kept else ("keys", "fail")

    async def check() -> Check | None:
        checks = {check.name: check for check in await in_redis(app, "tests.chaos.rows_app:app")}
        return checks.get(name)  # None where the server, on a busy machine, gave no answer in time.

    found = await team.until("doctor has an answer", check)
    return found.verdict == verdict and key in found.found


async def refusal(team: Team) -> str:
    """Return how a send to partition 0 is refused; empty if it is not."""
    number = team.sender.next_number()
    placement = Placement(team.partitions)
    key = next(key for n in range(999) if placement.partition_of((key := f"own{n}").encode()) == 0)
    try:
        team.sends.confirmed[number] = await team.items.send(Item(key, number))
    except BackendRefused as error:
        team.sends.refused.add(number)
        return str(error)
    return ""


async def has_type(team: Team, key: str, kind: str) -> bool:
    return bool(await team.raw.type(key) == kind.encode())


def is_named_in_logs(team: Team, key: str, said: Mapping[Forked, int]) -> bool:
    return any(key in worker.log()[said.get(worker, 0) :] for worker in team.all_workers)


PROTOCOLS = {"claim": CLAIM, "lease": LEASE}
EVERY_KIND = (*sorted(PARTITIONS_OWN), *sorted(GROUPS_OWN), *PROTOCOLS_OWN)
EVERY_CASE = [(kind, wrong) for kind in EVERY_KIND for wrong in WRONG]


@sized(small={"teams": 2, "some": 6}, full={"teams": 4, "some": 0}, minutes=30)
async def test_a_key_of_another_type_is_named_and_stops_no_other_partition(
    yard: Yard, *, teams: int, some: int
) -> None:
    """Each kind of key and each type, or some, drawn; nobody ends."""
    cases = yard.rng("types").sample(EVERY_CASE, some) if some else EVERY_CASE
    outcomes: Counter[str] = Counter()

    async def share(
        cases: Sequence[tuple[str, str]], teams: int, name: str, environ: Mapping[str, str]
    ) -> None:
        rest = iter(range(teams))
        await yard.many(
            teams, lambda team: wrong_types(team, cases[next(rest) :: teams], outcomes), name, environ=environ
        )

    async def of_protocol(protocol: str) -> None:
        theirs = [case for case in cases if PROTOCOLS_OWN.get(case[0]) == protocol]
        if theirs:
            await share(theirs, 1, f"wrong-{protocol}", PROTOCOLS[protocol])

    ours = [case for case in cases if case[0] not in PROTOCOLS_OWN]
    await gathered(share(ours, teams, "wrong", STEADY), *map(of_protocol, PROTOCOLS))
    went_on, waited = outcomes["went on"], outcomes["waited"]
    target = "the key is named; other partitions go on"
    yard.record(
        "F25",
        "each kind of key, each other type",
        times=went_on,
        target=target,
        said=f"0 violations; nobody ended; doctor named the key in {outcomes['doctor']}, a worker in "
        f"{outcomes['worker']}, its producer in {outcomes['producer']}; the others went on in {went_on}, and "
        "all when the key was put right",
    )
    if waited:
        record(
            "F25",
            f"the claims of `coordination=claim`, each other type{', in small' if yard.is_small else ''}",
            times=waited,
            target=target,
            verdict="missed",
            said=f"0 violations; nobody ended; doctor and a worker named the key in {waited}; all waited in "
            f"{waited}, no partition moved, and all went on when the key was put right",
            why="nobody can renew a claim without that key, and without a claim nobody may go on",
            seed=yard.seed,
        )


# -- F26: clocks -----------------------------------------------------------------------------------


@scene
async def test_workers_whose_clocks_are_wrong_do_what_the_others_do(yard: Yard) -> None:
    """All times that are compared are the server's."""
    shifts = (3_600, -3_600, 86_400, -86_400)
    samples: list[float] = []
    async with yard.group("clocks") as team:
        for number, shift in enumerate(shifts):
            await team.hired(f"w{number}", ROWS_CLOCK_S=str(shift))
        async with team.load(per_second=60):
            for number, shift in enumerate(shifts):
                held, killed = await team.held_by(f"w{number}"), now_ms()
                team.kill(f"w{number}")
                samples.append(await team.takeover_ms(killed, held))
                await team.hired(f"again{number}", ROWS_CLOCK_S=str(-shift))
        await team.finished()
        deaths = [cause for cause, _, _ in await team.rebalances()].count("death")
    yard.record(
        "F26",
        "workers an hour and a day off, either way; each killed once",
        target="no difference in what they do",
        met=max(samples) <= DEAD_MS + 1_000 and deaths == len(shifts),
        samples_ms=samples,
        said=f"0 violations; {deaths} thought dead; the times are those of a takeover, as in F1",
        why="as Python reads the clock; that of the server is stepped in the soak and in the simulator",
    )


# -- F33: the control stream is a hint -----------------------------------------------------------------


@sized(
    small={"teams": 1, "count": 2, "environ": FAST},
    full={"teams": 5, "count": 10, "environ": STEADY},
    minutes=15,
)
async def test_members_agree_without_any_message(
    yard: Yard, *, teams: int, count: int, environ: Mapping[str, str]
) -> None:
    """Each heartbeat tells the generation, so a lost message costs one heartbeat."""
    samples: list[float] = []
    most_ms = setting(environ, "session_timeout_ms") + 1_000

    async def delete(team: Team, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if team.rng.random() < 0.5:
                await team.raw.delete(team.keys.control)
            else:
                await team.raw.xtrim(team.keys.control, maxlen=0, approximate=False)
            await asyncio.sleep(0.005)

    async def without_control(team: Team) -> None:
        stop = asyncio.Event()
        deleting = asyncio.create_task(delete(team, stop))
        try:
            async with team.at_work("w0", "w1"):
                for number in range(count):
                    changed = now_ms()
                    await team.hired(f"more{number}")
                    samples.append(now_ms() - changed)
                    changed = now_ms()
                    leaving = team.ask_to_leave(f"more{number}")
                    await team.settled()
                    samples.append(now_ms() - changed)
                    assert await team.ended(leaving) == 0
        finally:
            stop.set()
            await deleting

    await yard.many(teams, without_control, "unheard", environ=environ)
    yard.record(
        "F33",
        "deleted or emptied every 5 ms; joins and leaves",
        target=f"even shares <= {most_ms} ms without any message",
        most_ms=most_ms,
        samples_ms=samples,
    )


# -- F34: the source is gone ---------------------------------------------------------------------------


@sized(small={"count": 3}, full={"count": 40}, minutes=15)
async def test_a_source_that_is_deleted_or_made_anew_lower_is_noticed_and_named(
    yard: Yard, *, count: int
) -> None:
    """At any moment between two looks: a read that waits would wait for ever."""
    samples: list[float] = []
    async with yard.group("vanished", partitions=count, environ={}) as team:
        await team.hired("w0")
        await team.send(20 * count)
        await team.drained()
        await team.check()
        there = [p for p, log in team.entries.items() if log]

        async def one(p: int) -> None:
            await asyncio.sleep(yard.rng(p).uniform(0, 5))
            gone = now_ms()
            await team.raw.delete(team.keys.events(p))
            if p % 2:
                await team.raw.xadd(team.keys.events(p), {"v": "x"}, id="1-1")
            await team.until(
                f"it is said of partition {p}",
                lambda: any(line["partition"] == p for line in team.logged("stream_went_back")),
                poll_s=0.2,
            )
            samples.append(now_ms() - gone)

        await asyncio.gather(*map(one, there))
        team.check_nobody_was_hurt()
    yard.record(
        "F34",
        "idle partitions deleted, half of them made anew with a lower id",
        target="noticed and named <= session + read (12 s)",
        met=max(samples) <= 12_000,
        samples_ms=samples,
    )
