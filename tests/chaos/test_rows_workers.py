"""Rows F1-F7 and F27-F31 of the fault matrix: what happens to workers, and what many of them do.

The soak has the counts and the limits that are promised; docs/reliability.md has the figures.
"""

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.chaos.figures import record, repeats
from tests.chaos.team import PATIENCE_S, Entry, Team, now_ms, setting
from tests.chaos.times import FAST, STEADY, slack_for_this_machine
from tests.chaos.yard import Yard, scene, sized
from tests.rebalance.herd import run_herd

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(240),
    pytest.mark.full("rows of the fault matrix wait for what a fault leads to"),
]

BATCH_MS = 20
DEAD_MS = setting(FAST, "dead_after_ms")
ONE_SESSION = {"ROWS_ONE_SESSION": "1"}
IN_HAND = {"ROWS_HANDLER_S": "0.3", "ROWS_BATCH": "5"}
"""With these each partition has a batch in hand at any moment."""


# -- the judge -------------------------------------------------------------------------------------


@scene
async def test_a_log_that_was_tampered_with_is_not_passed(yard: Yard) -> None:
    """Whoever judges all that follows notices what it is there for."""
    async with yard.group("judged") as team:
        await team.hired("w0", "w1")
        await team.send(400)
        await team.drained()
        await team.check()
        true = {p: list(entries) for p, entries in team.entries.items()}
        log = true[0]
        assert len(log) >= 3
        rows = int(log[-1].fields[b"rows"])
        again = replace(log[-1], id=b"%d-0" % (log[-1].rows_before + 2 * rows))
        behind, later = log[-1].last, log[-1].last.partition("-")[0] + "-9007199254740991"
        plants = {
            "rows were before it": ([log[0], *log[2:]], [log[1], log[0], *log[2:]]),
            "epoch .* after": ([*log[:-1], changed(log[-1], epoch=log[-1].epoch - 1)],),
            "two owners": ([*log[:-1], changed(log[-1], owner="other.1")],),
            "begins before": ([*log, again],),
            "begins with what was committed": ([*log, changed(again, prev=behind)],),
            "ends before it begins": ([*log, changed(again, prev=behind, first=later)],),
            "went back": ([*log, changed(again, prev=behind, first=later, last=later)],),
            "confirmed and lost": (log[:-1],),
        }
        for says, logs in plants.items():
            for planted in logs:
                team.entries = {**true, 0: planted}
                with pytest.raises(AssertionError, match=says):
                    await team.check_entries()
        team.entries = true
        team.sends.refused.add(0)
        with pytest.raises(AssertionError, match="refused and in the log"):
            await team.check_entries()


def changed(entry: Entry, **fields: object) -> Entry:
    others = {name.encode(): str(value).encode() for name, value in fields.items()}
    return replace(entry, fields={**entry.fields, **others})


# -- F1, F2, F3 ------------------------------------------------------------------------------------


@sized(small={"teams": 2, "count": 2}, full={"teams": 8, "count": 125})
async def test_what_a_killed_worker_had_is_done_by_others_in_five_seconds_and_is_in_the_log_once(
    yard: Yard, *, teams: int, count: int
) -> None:
    """Killed at any moment, with batches in hand, at default settings; in full a thousand times."""
    samples: list[float] = []

    async def kills(team: Team) -> None:
        names = (f"w{number}" for number in itertools.count())
        async with team.at_work(next(names), next(names), next(names)):
            for _ in range(count):
                await asyncio.sleep(team.rng.uniform(0.05, 0.6))
                victim = team.rng.choice(sorted(team.workers))
                held, killed = await team.held_by(victim), now_ms()
                team.kill(victim)
                samples.append(await team.takeover_ms(killed, held))
                await team.hired(next(names))

    await yard.many(teams, kills, "killed", environ={})
    target = "0 violations; recovery p99 <= 5 s"
    yard.record("F1", "default settings", target=target, most_ms=5_000, samples_ms=samples,
                said="0 violations", strict=True)  # fmt: skip


@sized(
    small={"teams": 1, "workers": 4, "count": 1, "partitions": 8, "environ": FAST},
    full={"teams": 5, "workers": 8, "count": 10, "partitions": 16, "environ": {}},
)
async def test_a_rolling_restart_hands_over_in_half_a_second_and_executes_no_record_twice(
    yard: Yard, *, teams: int, workers: int, count: int, partitions: int, environ: Mapping[str, str]
) -> None:
    """The workers' own ledgers say so; the batch in hand is finished before its partition moves."""
    samples: list[float] = []

    async def rollings(team: Team) -> None:
        numbers = itertools.count()
        async with team.at_work(*(f"w{next(numbers)}" for _ in range(workers)), per_second=100):
            for _ in range(count * workers):
                oldest = min(team.workers, key=lambda each: int(each[1:]))
                asked = now_ms()
                leaving = team.ask_to_leave(oldest)
                assert await team.ended(leaving) == 0, leaving.log()[-3000:]
                await team.hired(f"w{next(numbers)}")
                rebalances = await team.rebalances()
                samples.extend(ms for cause, at, ms in rebalances if cause == "leave" and at >= asked and ms)
        times = Counter(n for call in team.calls() for n in call["n"])
        assert [n for n, count in times.items() if count > 1] == [], "executed twice"
        assert times.keys() == team.sends.confirmed.keys()

    await yard.many(teams, rollings, "rolling", ledger=True, partitions=partitions, environ=environ)
    yard.record(
        "F2",
        f"of {workers} workers, {'short session times' if environ else 'default settings'}",
        times=teams * count,
        target="handover p99 <= 0.5 s and the batch in hand; no record executed twice",
        most_ms=500 + BATCH_MS + (1_000 * slack_for_this_machine() if yard.is_small else 0),
        samples_ms=samples,
        said=f"{len(samples)} workers replaced, none executed twice",
        strict=True,
    )


@sized(
    small={"teams": 2, "count": 1, "environ": {**FAST, **IN_HAND}},
    full={"teams": 8, "count": 63, "environ": STEADY},
)
async def test_nothing_that_a_sleeper_had_in_hand_is_committed_when_it_wakes(
    yard: Yard, *, teams: int, count: int, environ: Mapping[str, str]
) -> None:
    """Nor does it end: it joins again, under another id. It sleeps until others have its partitions."""
    samples: list[float] = []
    players: list[Team] = []

    async def zombies(team: Team) -> None:
        players.append(team)
        async with team.at_work("w0", "w1", "w2"):
            for _ in range(count):
                await asyncio.sleep(team.rng.uniform(0.05, 0.6))
                victim = team.rng.choice(sorted(team.workers))
                held, asleep = await team.held_by(victim), now_ms()
                former = {lock.owner for lock in await team.locks()}
                team.workers[victim].pause()
                try:
                    await team.first_commits(asleep, held, above=held)
                    await asyncio.sleep(team.rng.uniform(0, 0.5))
                finally:
                    team.workers[victim].resume()
                awake = now_ms()
                latter = {lock.owner for lock in await team.settled() if lock.name == victim}
                samples.append(now_ms() - awake)
                assert latter.isdisjoint(former), "it came back under the id that was removed"
        # A commit of who slept would have been one of an earlier epoch behind a later one.

    await yard.many(teams, zombies, "zombies", environ=environ)
    lost = sum(len(team.logged("membership_lost")) for team in players)
    assert lost, "nobody says that it was removed"
    yard.record(
        "F3",
        "session times of seconds" if environ is STEADY else "short session times, a few",
        target="no commit of a sleeper accepted; rejoin <= 2 s",
        most_ms=2_000,
        samples_ms=samples,
        said=f"0 accepted; {lost} memberships lost and joined anew without an end of the process",
    )


# -- F4, F5: a worker that is busy ---------------------------------------------------------------------


@sized(
    small={"sessions": 2, "session_s": 4.5, "environ": STEADY},
    full={"sessions": 6, "session_s": 10.0, "environ": {}},
    minutes=10,
)
async def test_a_handler_that_blocks_or_computes_for_sessions_moves_nothing(
    yard: Yard, *, sessions: int, session_s: float, environ: Mapping[str, str]
) -> None:
    """Heartbeats have a thread of their own: a busy worker is alive.

    Two have a partition each. A third one stands by, and would take over from who gives no sign of life.
    """
    seconds = str(sessions * session_s)
    async with yard.group("blocked", partitions=2, environ=environ) as team:
        await team.hired("blocking", ROWS_HANDLER="block", ROWS_HANDLER_S=seconds)
        await team.hired("computing", ROWS_HANDLER="compute", ROWS_HANDLER_S=seconds)
        before = await team.hired("standby")
        await team.until("it stands by", partial(has_joined, team, "standby"))
        assert {lock.name for lock in before} == {"blocking", "computing"}
        rebalances = await team.begun()
        await team.send(20)
        await team.drained(PATIENCE_S + 3 * sessions * session_s)
        await team.finished()
        assert await team.begun() == rebalances
        assert await team.locks() == before
    yard.record(
        "F4",
        f"one blocked its event loop, one computed, each for {sessions} sessions of {session_s:g} s",
        times=team.partitions,
        target="no partition moves",
        said=f"0 rebalances; each partition's batch took {seconds} s",
    )


@scene
async def test_a_handler_that_holds_the_interpreter_may_lose_its_partitions_and_nothing_else(
    yard: Yard,
) -> None:
    """Not even the thread of the heartbeats runs: the worker looks slow, and is overtaken."""
    async with yard.group("held") as team:
        await team.hired("w0", "w1", ROWS_HANDLER="gil", ROWS_HANDLER_S="2.5")
        async with team.load(per_second=60):
            await asyncio.sleep(3)
            # On a busy machine the first of such records may come late, and hold for less than it should.
            late = await team.until("it is said", partial(team.logged, "heartbeats_late"), poll_s=0.5)
        await team.finished()
        deaths = [each for each in await team.rebalances() if each[0] == "death"]
    yard.record(
        "F5",
        "a regular expression of seconds",
        times=-(-len(team.sends.confirmed) // 100),
        target="0 violations; the log names it",
        said=f"0 violations; {len(deaths)} overtaken, {len(late)} warnings `heartbeats_late`",
    )


# -- F7: a machine that is too busy -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "may_move"),
    [
        pytest.param(9, 0, id="small", marks=pytest.mark.alone("keeps all cores busy")),
        pytest.param(
            60.0 * repeats(10, 2), 2, id="full", marks=[pytest.mark.soak, pytest.mark.timeout(1_200)]
        ),
    ],
)
async def test_workers_that_hardly_get_to_run_lose_nothing_for_it(
    yard: Yard, seconds: float, may_move: int
) -> None:
    """Four busy processes run beside workers at nice 19, for two short sessions, or for minutes.

    In these two rebalances may be: what else such a machine does, nobody knows. All processes are of one
    session, which is what nice is within.
    """
    environ = ONE_SESSION if may_move else {**STEADY, **ONE_SESSION}
    async with yard.group("starved", environ=environ) as team:
        await team.hired("w0", "w1", "w2", "w3")
        before = await team.begun()
        for worker in team.workers.values():
            be_nice(worker.pid)
        had_s = cpu_s(team)
        burners = [
            yard.forge.fork(f"burner{n}", {"ROWS_BURN": "1", **ONE_SESSION}, yard.folder / f"burner{n}.log")
            for n in range(4)
        ]
        try:
            async with team.load(per_second=8):
                await asyncio.sleep(seconds)
            had_s = cpu_s(team) - had_s
            burnt_s = [sum(psutil.Process(burner.pid).cpu_times()[:2]) for burner in burners]
            assert min(burnt_s) > seconds / 20, f"not all were busy: {burnt_s}"
        finally:
            for burner in burners:
                burner.signal(signal.SIGKILL)
        moved = [each for each in await team.begun() if each not in before]
        await team.finished()
    said = f"{len(moved)} rebalances; all four workers had {had_s:.1f} s of a core"
    assert had_s < seconds / 4, f"nobody was starved: {said}"
    lasts = f"{seconds / 60:.0f} minutes" if seconds >= 60 else f"{seconds:.0f} s"
    yard.record(
        "F7",
        f"4 busy processes beside 4 workers at nice 19, {lasts}",
        times=1,
        target=f"{'<= ' if may_move else ''}{may_move} rebalances in {lasts}, none without a cause",
        met=len(moved) <= may_move,
        said=said,
    )


def cpu_s(team: Team) -> float:
    """Return how long a team's workers have run so far."""
    shares = [psutil.Process(worker.pid).cpu_times() for worker in team.workers.values()]
    return float(sum(share.user + share.system for share in shares))


def be_nice(pid: int) -> None:
    """Let all threads of a process run only when nobody else wants to."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)


# -- F27 -------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.alone("fifty workers on two cores are a load of their own")
@pytest.mark.timeout(600)
async def test_fifty_workers_that_join_at_once_come_to_one_assignment(yard: Yard) -> None:
    """Within three seconds, at forty commands each, in each round."""
    rounds = [await run_herd(yard.forge, workers=50, partitions=64) for _ in range(3)]
    agreed = [each.agree_ms or 60_000 for each in rounds]
    commands = max(each.commands_a_worker for each in rounds)
    generations = max(each.generations for each in rounds)
    yard.record(
        "F27",
        "50 workers on 64 partitions, 3 rounds",
        times=150,
        target="agreed <= 3 s; <= 40 commands a worker; <= 3 versions of the assignment",
        met=max(agreed) <= 3_000 and commands <= 40 and generations <= 3,
        samples_ms=agreed,
        said=f"{commands:.0f} commands a worker, {generations} versions at most",
    )


# -- F28, F29, F30 ---------------------------------------------------------------------------------


@sized(small={"rounds": 3, "window_s": 2.0}, full={"rounds": 60, "window_s": 20.0}, minutes=10)
async def test_a_member_that_comes_and_goes_leaves_others_their_work(
    yard: Yard, *, rounds: int, window_s: float
) -> None:
    """Each coming and going is a rebalance: the others keep four fifths of their pace."""
    # Handlers that wait decide the pace, so that the machine does not.
    environ = {**FAST, "ROWS_BATCH": "5", "ROWS_HANDLER_S": "0.05"}
    async with yard.group("flapping", environ=environ) as team:
        await team.hired("w0", "w1")
        per_second = 0.9 * 4 * 5 / 0.05
        await team.send(round(per_second * (3 * window_s + 2 * rounds)))
        await team.read_logs()
        before, since = committed(team), time.monotonic()

        async def pace() -> float:
            nonlocal before, since
            await team.read_logs()
            (done, now), (before, since) = (before, since), (committed(team), time.monotonic())
            return (before - done) / (since - now)

        await asyncio.sleep(window_s)
        quiet = await pace()
        for number in range(rounds):
            team.hire(f"flap{number}")
            await team.until("it has come", partial(has_joined, team, f"flap{number}"))
            await asyncio.sleep(DEAD_MS / 2000)
            leaving = team.ask_to_leave(f"flap{number}")
            await asyncio.sleep(DEAD_MS / 2000)
            assert await team.ended(leaving) == 0
        part = await pace() / quiet
        await team.drained(PATIENCE_S + 3 * window_s + 2 * rounds)
        await team.finished()
    what = f"joins and leaves every {DEAD_MS // 2} ms, {rounds} times"
    target = "the others keep 80% of their pace"
    yard.record("F28", what, times=rounds, target=target, met=part >= 0.8, said=f"{part:.0%}")


def has_joined(team: Team, name: str) -> bool:
    """Whether a worker is a member; before that a signal may end it before it can drain."""
    return '"joined"' in team.workers[name].log()


def committed(team: Team) -> int:
    """Return the rows that were read of the acked logs."""
    last = [entries[-1] for entries in team.entries.values() if entries]
    return sum(entry.rows_before + int(entry.fields[b"rows"]) for entry in last)


@sized(small={"rounds": 2, "records": 1_000}, full={"rounds": 20, "records": 10_000}, minutes=10)
async def test_who_comes_back_to_an_empty_group_does_not_wait(
    yard: Yard, *, rounds: int, records: int
) -> None:
    """Those who left in order left nothing to wait for: the first commit comes a second after the start."""
    samples: list[float] = []
    async with yard.group("empty", environ={"ROWS_BATCH": "500"}) as team:
        await team.hired("w0", "w1", "w2")
        for number in range(rounds):
            leaving = [team.ask_to_leave(name) for name in list(team.workers)]
            assert [await team.ended(worker) for worker in leaving] == [0, 0, 0]
            await team.send(records)
            started = now_ms()
            team.hire(*(f"w{number}-{each}" for each in range(3)))
            samples.append(min((await team.first_commits(started, [0])).values()) - started)
            await team.settled()
        await team.finished()
    yard.record(
        "F29",
        f"all leave, {records} records are sent, all come",
        target="first commit <= 1 s after the start",
        met=max(samples) <= 1_000,
        samples_ms=samples,
        why="of a process that has loaded Python and what it imports already",
    )


@sized(
    small={"workers": 9, "partitions": 6, "rounds": 1, "environ": FAST},
    full={"workers": 24, "partitions": 16, "rounds": 50, "environ": STEADY},
    minutes=10,
)
async def test_of_those_who_stand_by_one_takes_over(
    yard: Yard, *, workers: int, partitions: int, rounds: int, environ: Mapping[str, str]
) -> None:
    """Of three workers two work and one stands by; nobody ends for having nothing to do."""
    samples: list[float] = []
    most_ms = setting(environ, "dead_after_ms") + 1_000
    async with yard.group("standby", partitions=partitions, environ=environ) as team:
        await team.hired(*(f"w{number}" for number in range(workers)))
        # Shares are even once as many have joined as there are partitions: the others may be starting yet.
        expected = {"active": partitions, "standby": workers - partitions}

        async def all_are_there() -> bool:
            return Counter([member.state for member in (await team.snapshot()).members]) == expected

        await team.until(f"the members are {expected}", all_are_there)
        async with team.load(per_second=20 * partitions):
            for number in range(rounds):
                p = team.rng.randrange(partitions)
                lock, killed = (await team.locks())[p], now_ms()
                team.kill(lock.name)
                samples.append(await team.takeover_ms(killed, {p: lock.epoch}))
                await team.hired(f"spare{number}")
        await team.finished()
    what, target = f"{workers} workers on {partitions} partitions", f"a standby takes over <= {most_ms} ms"
    yard.record("F30", what, target=f"{target}; nobody ends", most_ms=most_ms, samples_ms=samples)


# -- F31 -------------------------------------------------------------------------------------------


@scene
async def test_a_worker_that_wants_more_partitions_is_refused_and_the_others_go_on(yard: Yard) -> None:
    """Records would change their partitions in the middle of the stream."""
    async with yard.group("grown", partitions=16) as team:
        await team.hired("w0", "w1")
        async with team.load(per_second=100):
            team.hire("larger", ROWS_PARTITIONS="24")
            larger = team.workers.pop("larger")
            code = await team.ended(larger)
        await team.finished(larger)
    assert code not in {0, None}
    assert "16" in larger.log() and "24" in larger.log()
    record(
        "F31",
        "16 partitions, a worker with 24",
        times=1,
        target="0 inversions; who has another number refuses",
        verdict="refused",
        said="the worker with 24 ends and says why; the others go on in order",
        why="partitions are not added while workers run, except under `claim`",
    )
