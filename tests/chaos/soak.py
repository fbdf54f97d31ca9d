"""The soak: workers, producers, a server, faults of all kinds drawn from a seed, and the checker's verdict.

    python -m tests.chaos.soak --seed 7 --minutes 4 --events 50000 --faults 160
    python -m tests.chaos.soak --seed 7 --minutes 60 --events 600000 --faults 3200 --json
    python -m tests.chaos.soak --seed 7 --minutes 4 --events 12000 --faults 100 --cluster

A failure names the seed and the command that repeats it. The seed decides the faults, their targets and how
long they last; when they meet what is under way is the machine's business, so a failure may need some tries.
The history of a failed run is kept, and ``python -m tests.chaos.checker FOLDER`` judges it again.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import redis

from streamworker.cli.exit_codes import ExitCode
from streamworker.declaring.specs import TIMERS_STREAM
from tests.chaos.chaos_app import (
    APP,
    COUNTED,
    OVERLAPPING,
    PASSED,
    PASSED_PARTITIONS,
    PROCESSOR,
    STREAM,
    TOTALS,
)
from tests.chaos.checker import Judge, Limits, Violation
from tests.chaos.cluster_kinds import CLUSTER_KINDS
from tests.chaos.dump import dump_of, take_dump
from tests.chaos.forked import Forge
from tests.chaos.history import Recorder, monotonic_ms, read_history
from tests.chaos.nemesis import LOSSLESS, Field, Names, Nemesis, Slot, is_over
from tests.chaos.timeline import draw
from tests.helpers import Process
from tests.planting import PLANTS
from tests.stage.disturbed import FAKETIME, ChaosServer, Namespace
from tests.stage.nodes import PRIMARIES, ChaosCluster

SETTINGS = {
    "HEARTBEAT_INTERVAL_MS": 400,
    "CALL_TIMEOUT_MS": 1_000,
    "DEAD_AFTER_MS": 1_000,
    "SESSION_TIMEOUT_MS": 3_000,
    "SLOW_AFTER_MS": 4_000,
    "GRACE_PERIOD_MS": 2_000,
    "DRAIN_DEADLINE_MS": 4_000,
    "SHUTDOWN_TIMEOUT_MS": 8_000,
    "STALLED_AFTER_MS": 5_000,
    "FETCH_BLOCK_MS": 500,
    "TRIM_INTERVAL_MS": 500,
}
"""A third of the defaults and less, so that more happens in a minute; the relations are the same."""

OVERLAP_MAX = 5
"""Faults at a time."""
OFTEN = {"worker killed": 3, "worker asked to leave": 2, "worker frozen": 2, "server killed": 2}
"""Kinds that come more than once in a round of all kinds."""
NETWORKS = 2
"""Workers with a network of their own, where namespaces can be made."""
TICK_S = 0.02
EVERY_SHARD = frozenset(f"shard {number}" for number in range(PRIMARIES))
TRIES_MAX = 3
"""How often a fault that only a Cluster has is tried at its turn, until it comes about."""
STORM_TIMES, STORM_MORE_S = 3, 120
"""How long all faults may take: so many times the minutes that they were to take, and so much more."""
START_S = 90
SETTLE_S = 180
STOP_S = 60


@dataclass(frozen=True)
class Plan:
    seed: int
    minutes: float = 4.0
    events: int = 50_000
    faults: int = 160
    partitions: int = 16
    workers: int = 8
    producers: int = 2
    cluster: bool = False
    """Whether it runs on a Cluster of three primaries and three replicas, with the faults of one."""
    durability: str = "memory"
    """That of workers and producers; with ``replicas`` a failover may cost nothing."""
    plant: str = ""
    """A known mistake in the workers' code."""
    kinds: tuple[str, ...] = ()
    """Only these kinds of faults; all if empty."""
    handler_ms: int = 20
    """How long a call takes, in the mean."""
    haste: int = 1
    """All times of the settings are divided by it."""

    @property
    def has_chain(self) -> bool:
        """Whether what is handled is passed on: a chain that lost something may wait for a person."""
        return not self.cluster

    @property
    def command(self) -> str:
        words = [f"python -m tests.chaos.soak --seed {self.seed} --minutes {self.minutes:g}"]
        words += [f"--events {self.events} --faults {self.faults} --partitions {self.partitions}"]
        words += [f"--workers {self.workers} --producers {self.producers}"]
        words += [f"--plant {self.plant!r}"] * bool(self.plant)
        words += [f"--cluster --durability {self.durability}"] * self.cluster
        words += [f"--kind {kind!r}" for kind in self.kinds]
        words += [f"--handler-ms {self.handler_ms} --haste {self.haste}"]
        return " ".join(words)


@dataclass(frozen=True)
class Verdict:
    plan: Plan
    violations: list[Violation]
    figures: dict[str, Any]
    report: str

    def check(self) -> None:
        """Raise if anything is wrong."""
        assert not self.violations, self.report


class Soak:
    """One run."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self.plan, self.folder, self._say = plan, folder, say
        self._rng = random.Random(plan.seed)
        self._history = folder / "history"
        self._history.mkdir(parents=True)
        self._recorder = Recorder(self._history / "soak.jsonl")
        self._names = Names(APP, STREAM, PROCESSOR, plan.partitions)
        takers = (COUNTED, OVERLAPPING) if plan.has_chain else ()
        self._takers = [Names(APP, PASSED, group, PASSED_PARTITIONS) for group in takers]
        self._locks = [self._names.lock(p) for p in range(plan.partitions)]
        self._starts: Counter[str] = Counter()
        self._slots: list[Slot] = []
        self._done: set[str] = set()
        """Producers that have sent all."""
        self._active: list[tuple[float, int, Nemesis]] = []
        """Faults that go on: when they are over, their number."""
        self._tried = 0
        """Faults that were begun; each has the number of those before it."""
        self._made: Counter[str] = Counter()
        """Faults that came about, or are under way: by kind."""
        self._put_off: list[type[Nemesis]] = []
        """Kinds that found nobody to hurt when it was their turn, and wait."""
        self._dropped: Counter[str] = Counter()
        """Of those that did not wait, or waited until the end: by kind."""
        self._failed: Counter[str] = Counter()
        """Faults that did not come about since the last of their kind that did."""
        self._missing: dict[str, str] = {}

    # -- the whole -----------------------------------------------------------------------------

    def run(self, forge: Forge) -> Verdict:
        self._forge = forge
        with contextlib.ExitStack() as self._networks, self._make_server() as self._server:
            try:
                self._field = Field(self._server, self._slots, self._names, self._recorder.write)
                self._open()
                self._storm()
                self._heal()
                self._settle()
                self._stop()
                self._dump()
            finally:
                self._end_programs()
                self._recorder.close()
        return self._judge()

    def _make_server(self) -> ChaosServer | ChaosCluster:
        folder, clock = self.folder / "data", FAKETIME is not None
        if self.plan.cluster:
            return ChaosCluster(folder, clock=clock)
        return ChaosServer(folder, small_disk=os.geteuid() == 0, clock=clock)

    def _open(self) -> None:
        plan = self.plan
        for number in range(plan.workers):
            network = self._network(number) if number < NETWORKS else None
            self._add(f"w{number}", self._start_worker, is_worker=True, network=network)
        for slot in self._slots:
            slot.begin()
        self._until(self._all_owned, "all partitions have an owner", START_S)
        for number in range(plan.producers):
            slot = self._add(f"p{number}", self._start_producer, is_worker=False)
            slot.begin()
        self._until(lambda: self._rows_seen() > 0, "the first rows are committed", START_S)
        self._say(f"{plan.workers} workers and {plan.producers} producers are at work")

    def _network(self, number: int) -> Namespace | None:
        """Make a network of its own for a worker; None where that cannot be."""
        try:
            return self._networks.enter_context(Namespace(number))
        except (OSError, subprocess.CalledProcessError):
            return None

    def _add(
        self, name: str, start: Callable[[str], Process], *, is_worker: bool, network: Namespace | None = None
    ) -> Slot:
        proxy = self._server.proxy(network.host if network else "127.0.0.1")
        slot = Slot(name, lambda: start(name), proxy=proxy, is_worker=is_worker, link=network)
        self._slots.append(slot)
        return slot

    def _environ(self, name: str) -> dict[str, str]:
        proxy, link = next((slot.proxy, slot.link) for slot in self._slots if slot.name == name)
        assert proxy is not None
        return {
            **({"WORKER_NETNS": link.name, "STREAMWORKER_ALLOW_PLAINTEXT": "1"} if link else {}),
            **{f"STREAMWORKER_{each}": str(ms // self.plan.haste) for each, ms in SETTINGS.items()},
            "STREAMWORKER_REDIS_URL": proxy.url,
            "STREAMWORKER_DURABILITY": self.plan.durability,
            "WORKER_APP": "tests.chaos.chaos_app",
            "CHAOS_HISTORY": str(self._history),
            "CHAOS_PARTITIONS": str(self.plan.partitions),
            "CHAOS_NAME": name,
            "CHAOS_PLANT": self.plan.plant,
            "CHAOS_CHAIN": "1" * self.plan.has_chain,
            "CHAOS_HANDLER_S": str(self.plan.handler_ms / 1000),
            "WORKER_LOG_LEVEL": "debug",
        }

    def _start_worker(self, name: str) -> Process:
        self._starts[name] += 1
        environ = self._environ(name)
        # A file for each start: a worker that is killed may leave half a line.
        number = f"{name}.{self._starts[name]}"
        return self._forge.fork(number, environ, self._history / f"{number}.log")

    def _start_producer(self, name: str) -> Process:
        plan = self.plan
        count = plan.events // plan.producers
        pace = plan.events / plan.producers / (60 * plan.minutes)
        environ = {**self._environ(name), "FORKED_PROGRAM": f"{name} {count} {pace:.2f}"}
        return self._forge.fork(name, environ, self._history / f"{name}.txt")

    # -- faults ----------------------------------------------------------------------------------

    def _storm(self) -> None:
        plan, deck = self.plan, self._deck()
        pace_s = 60 * plan.minutes / plan.faults
        next_s = began_s = time.monotonic()
        told = 0

        def is_done() -> bool:
            nonlocal next_s, told
            self._tend()
            is_due = time.monotonic() >= next_s and len(self._active) < OVERLAP_MAX
            if is_due and self._begin_one_of(deck):
                # Behind on a busy machine, it does not rush to catch up.
                next_s = max(next_s + pace_s, time.monotonic() - pace_s)
            if (minutes := int((time.monotonic() - began_s) / 60)) > told:
                told = minutes
                self._say(f"{minutes} min: {self._made.total()} faults, {self._rows_seen()} rows")
            # Of those under way, one that could not be begun is not waited for.
            in_doubt = sum(bool(fault.failure) for _, _, fault in self._active)
            return self._made.total() - in_doubt >= plan.faults

        limit_s = STORM_TIMES * 60 * plan.minutes + STORM_MORE_S
        self._until(is_done, f"{plan.faults} faults came about", limit_s, TICK_S)
        self._dropped.update(kind.name for kind in self._put_off)

    def _begin_one_of(self, deck: Iterator[type[Nemesis]]) -> bool:
        """Begin a fault that was put off if one can be, or else the next.

        One that finds nobody to hurt is put off if only a Cluster has its kind, or if none of its kind has
        come yet. Else it is left out: half of all faults want the server, and would wait for each other.
        While a fault waits that only a Cluster has, no other may have a shard.
        """
        for kind in self._put_off:
            if self._begin(kind):
                self._put_off.remove(kind)
                return True
        kind = next(deck)
        is_wanted = kind in CLUSTER_KINDS or not self._made[kind.name]
        if is_wanted and kind in self._put_off:
            return False
        waits = any(each in CLUSTER_KINDS for each in self._put_off)
        if self._begin(kind, EVERY_SHARD if waits else frozenset()):
            return True
        if is_wanted:
            self._put_off.append(kind)
        else:
            self._dropped[kind.name] += 1
        return False

    def _deck(self) -> Iterator[type[Nemesis]]:
        """Deal all kinds in a new order each round, so that none is left out; a Cluster's own kinds first."""
        kinds = [*LOSSLESS, *(CLUSTER_KINDS if self.plan.cluster else ())]
        if self.plan.kinds:
            kinds = [kind for kind in (*LOSSLESS, *CLUSTER_KINDS) if kind.name in self.plan.kinds]
        self._missing = {kind.name: why for kind in kinds if (why := kind.missing(self._field))}
        kinds = [kind for kind in kinds if kind.name not in self._missing]
        if not kinds:
            raise ValueError(f"No fault can be made here: {self._missing or self.plan.kinds}")
        while True:
            round_of = [kind for kind in kinds for _ in range(OFTEN.get(kind.name, 1))]
            self._rng.shuffle(round_of)
            yield from sorted(round_of, key=lambda kind: kind not in CLUSTER_KINDS)

    def _begin(self, kind: type[Nemesis], barred: frozenset[str] = frozenset()) -> bool:
        fault = kind()
        taken = barred.union(*(each.takes for _, _, each in self._active))
        if not any(fault.aim(self._field, self._rng, taken) for _ in range(4)):
            return False
        number = self._tried
        self._tried += 1
        self._made[kind.name] += 1
        lasts_s = self._rng.uniform(*kind.lasts_s)
        # Written before it is done: what is lost by it was confirmed before.
        self._fault("begin", fault, number)
        self._active.append((time.monotonic() + lasts_s, number, fault))
        try:
            fault.begin()
        except redis.RedisError as error:
            # Half of it may be done: it goes on, and is ended, as if it had come about.
            fault.failure = f"{type(error).__name__}: {error}"
        return True

    def _fault(self, what: str, fault: Nemesis, number: int) -> None:
        words = {"name": fault.name, "target": fault.target, "number": number}
        words["may_lose"] = list(fault.partitions)
        words["takes"] = sorted(fault.takes)
        if what == "failed":
            words["why"] = fault.failure
        self._recorder.write("fault", what=what, **words)

    def _tend(self, *, at_once: bool = False) -> None:
        """End faults that are over, and start again what ended by itself."""
        now_s = time.monotonic()
        for each in list(self._active):
            until_s, number, fault = each
            if now_s < until_s and not at_once:
                continue
            if is_over(fault):
                self._active.remove(each)
                # What it may cost is allowed for as long as it was tried, whatever came of it.
                self._fault("failed" if fault.failure else "end", fault, number)
                self._count(fault)
        taken = frozenset().union(*(each.takes for _, _, each in self._active))
        for slot in self._slots:
            if not slot.running and f"process {slot.name}" not in taken and slot.name not in self._done:
                self._ended(slot)

    def _count(self, fault: Nemesis) -> None:
        """Count a fault that is over; one of a Cluster's own kinds that did not come about is tried again."""
        name, kind = fault.name, type(fault)
        if not fault.failure:
            del self._failed[name]
            return
        self._made[name] -= 1
        self._failed[name] += 1
        if kind in CLUSTER_KINDS and kind not in self._put_off and self._failed[name] % TRIES_MAX:
            self._put_off.append(kind)

    def _ended(self, slot: Slot) -> None:
        """A process ended, and no fault is the cause."""
        assert slot.process is not None
        code = slot.process.code
        if not slot.is_worker and code == 0:
            self._done.add(slot.name)
            return
        log = slot.process.log()
        # A worker that cannot reach Redis at its start says so and ends: whoever started it starts it again.
        if slot.is_worker and code == ExitCode.REDIS and "worker_started" not in log:
            self._recorder.write("run", what="not begun", name=slot.name, code=code, last=_last_words(log))
        else:
            self._died(slot, code, log)
        self._recorder.write("run", what="started again", name=slot.name, code=code)
        slot.begin()

    def _died(self, slot: Slot, code: int | None, log: str) -> None:
        self._recorder.write("died", name=slot.name, code=code, last=_last_words(log))

    # -- the end ---------------------------------------------------------------------------------

    def _heal(self) -> None:
        self._until(self._all_over, "all faults are over", STOP_S)
        self._recorder.write("run", what="healed")
        made = +self._made
        said = f"{made.total()} faults of {len(made)} kinds came about and are over"
        self._say(f"{said}, {self._tried - made.total()} could not be made")

    def _all_over(self) -> bool:
        self._tend(at_once=True)
        return not self._active

    def _settle(self) -> None:
        with contextlib.suppress(TimeoutError):
            self._until(self._all_sent, "the producers have sent all", SETTLE_S + 60 * self.plan.minutes)
            # What comes now is bounded: nothing more is sent.
            self._recorder.write("run", what="healed")
            self._until_done(self._is_committed, self._names, "everything is committed")
            self._until_done(self._is_forwarded, self._names, "everything is passed on")
            for names in self._takers:
                self._until_done(self._is_committed, names, "what was passed on is committed")
            self._recorder.write("run", what="settled")

    def _all_sent(self) -> bool:
        self._tend()
        return all(slot.name in self._done for slot in self._slots if not slot.is_worker)

    def _until_done(self, is_done: Callable[[Any, Names, int], bool], names: Names, what: str) -> None:
        """Wait until each partition was done once: a timer sends on and on."""
        left = set(range(names.partitions))

        def all_done() -> bool:
            self._tend()
            with self._server.client() as client:
                left.difference_update([p for p in left if is_done(client, names, p)])
            return not left

        self._until(all_done, what, SETTLE_S)

    @staticmethod
    def _is_committed(client: Any, names: Names, partition: int) -> bool:
        checkpoint = (client.hget(names.lock(partition), "checkpoint") or b"0-0").decode()
        return not client.xrange(names.events(partition), f"({checkpoint}", "+", 1)

    @staticmethod
    def _is_forwarded(client: Any, names: Names, partition: int) -> bool:
        return not client.xlen(names.outbox(partition).messages)

    def _stop(self) -> None:
        workers = [slot for slot in self._slots if slot.is_worker]
        for slot in workers:
            slot.send(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            self._until(lambda: not any(s.running for s in workers), "all workers have left", STOP_S)
        for slot in workers:
            if slot.process is not None and slot.process.code != 0:
                self._died(slot, slot.process.code, slot.process.log())

    def _dump(self) -> None:
        names = self._names
        with self._server.client(60) as client:
            deadline = time.monotonic() + 10
            while (left := self._server.connections()) and time.monotonic() < deadline:
                time.sleep(0.1)
            found = self._dump_of(client, names)
            others = [*self._takers, Names(APP, TIMERS_STREAM, "timers", 1)]
            found["others"] = {its.group: self._dump_of(client, its, table=TOTALS) for its in others}
        found["connections"] = left
        (self._history / "dump.json").write_text(json.dumps(found), "utf-8")

    @staticmethod
    def _dump_of(client: Any, names: Names, table: str = "") -> dict[str, Any]:
        return take_dump(
            client,
            app=names.app,
            stream=names.stream,
            group=names.group,
            partitions=names.partitions,
            table=table,
        )

    def _end_programs(self) -> None:
        for _, _, fault in self._active:
            with contextlib.suppress(Exception):
                fault.end()
        for slot in self._slots:
            slot.send(signal.SIGKILL)

    def _judge(self) -> Verdict:
        history = read_history(self._history)
        dump = dump_of(json.loads((self._history / "dump.json").read_text("utf-8")))
        judge = Judge(history, dump, Limits(replicated=self.plan.durability == "replicas"))
        violations = judge.judge()
        figures = {"seed": self.plan.seed, **judge.figures(), "not_here": self._missing}
        figures["dropped"] = dict(sorted(self._dropped.items()))
        figures["starts"] = sum(self._starts.values())
        if isinstance(self._server, ChaosCluster):
            watch = self._server.watch
            figures["one_slot_each"] = {
                "commands_with_keys": sum(watch.commands.values()),
                "commands_without": watch.others,
                "slots": len(watch.slots),
                "crossing": len(self._server.crossings()),
                "sent_on": dict(watch.sent_on),
            }
            violations += [Violation("one slot", text) for text in self._server.crossings()]
        if 2 * figures["packed"] < figures["rows"] or not figures["batches_that_cut_entries"]:
            text = f"{figures['packed']} of {figures['rows']} records stood in them, behind the first"
            violations.append(Violation("entries of many", text))
        lines = [f"{len(violations)} violations. Again: {self.plan.command}", f"History: {self._history}"]
        lines += [f"\n{violation}\n{draw(history, violation)}" for violation in violations]
        return Verdict(self.plan, violations, figures, "\n".join(lines))

    # -- looking -----------------------------------------------------------------------------------

    def _all_owned(self) -> bool:
        with self._server.client() as client:
            return all(client.hget(lock, "owner") for lock in self._locks)

    def _rows_seen(self) -> int:
        try:
            with self._server.client(0.5) as client:
                return sum(int(client.hget(lock, "rows") or 0) for lock in self._locks)
        except redis.RedisError:
            return -1

    def _until(
        self, condition: Callable[[], bool], what: str, timeout_s: float, poll_s: float = 0.05
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"Waited {timeout_s:.0f} s in vain until {what}. Again: {self.plan.command}"
                )
            time.sleep(poll_s)


def _last_words(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-600:]


def run_soak(
    plan: Plan, forge: Forge, folder: Path | None = None, say: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Run a soak; its history is kept if it fails."""
    place = Path(tempfile.mkdtemp(prefix=f"soak-{plan.seed}-", dir=folder))
    verdict = Soak(plan, place, say).run(forge)
    if not verdict.violations:
        shutil.rmtree(place, ignore_errors=True)
    return verdict


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    for name in ("minutes", "events", "faults", "partitions", "workers", "producers", "handler_ms", "haste"):
        default = getattr(Plan, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--cluster", action="store_true", help="on a Cluster, with the faults of one")
    parser.add_argument("--durability", choices=("memory", "replicas"), default=Plan.durability)
    parser.add_argument("--plant", choices=PLANTS, metavar="NAME", default="", help="a mistake, to be found")
    parser.add_argument(
        "--kind", action="append", default=[], help="only this kind of fault; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    kinds = tuple(options.pop("kind"))
    if options["durability"] == "replicas" and not options["cluster"]:
        parser.error("--durability replicas needs --cluster: one server has no replicas")
    plan = Plan(**options, kinds=kinds)
    began_ms = monotonic_ms()
    with tempfile.TemporaryDirectory() as place, Forge(Path(place)) as forge:
        verdict = run_soak(plan, forge, say=lambda text: print(text, file=sys.stderr, flush=True))
    figures = {**verdict.figures, "violations": len(verdict.violations)}
    figures["seconds"] = round((monotonic_ms() - began_ms) / 1000)
    if as_json:
        print(json.dumps({"plan": asdict(plan), **figures}, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:15} {value}")
    if verdict.violations:
        print(verdict.report, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
