"""The soak in short, mistakes that it must catch, and the soak in full behind the marker ``soak``.

The seed is fixed, so that a change is judged by what it changes; ``CHAOS_SEED`` sets another.
"""

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

import tests.chaos.soak as soak_module
from streamworker.cli.exit_codes import ExitCode
from tests.chaos.cluster_kinds import CLUSTER_KINDS
from tests.chaos.forked import Forge
from tests.chaos.history import read_history
from tests.chaos.nemesis import LOSSLESS, DiskFull, Field, MembershipCorrupt, Names, Slot
from tests.chaos.soak import Plan, Soak, Verdict, run_soak
from tests.helpers import LoggedProcess, wait_for
from tests.planting import PLANTS, Plant, each_found_by
from tests.stage.disturbed import ChaosServer

pytestmark = pytest.mark.full("a storm of faults, and a mistake that it must catch")

SEED = int(os.environ.get("CHAOS_SEED", "20"))
SURE = "a commit that comes again is done again"
"""The mistake that the default form plants: one lost reply is enough to show it."""
SLOW = "whoever was the owner once may commit"
PLANT_TRIES = 8
"""What a mistake needs may happen to miss what is under way; another seed then meets it."""


def run(plan: Plan, forge: Forge, folder: Path) -> Verdict:
    verdict = run_soak(plan, forge, folder, print)
    print(verdict.figures)
    return verdict


def test_a_fault_that_cannot_be_made_is_written_down_as_failed_and_not_counted(tmp_path: Path) -> None:
    """It may have half happened, so it has an end too: until then its cost is allowed for."""
    soak = Soak(Plan(SEED), tmp_path / "run")
    with ChaosServer(tmp_path / "data") as server:
        soak._field = Field(server, [], Names("chaos", "events", "handled", 1))
        server.kill()
        assert soak._begin(MembershipCorrupt)
        server.start()
        assert soak._begin(MembershipCorrupt) is False, "the first still has hold of the server"
        soak._tend(at_once=True)
        assert soak._begin(MembershipCorrupt)
        soak._tend(at_once=True)
    soak._recorder.close()
    assert soak._made == {MembershipCorrupt.name: 1}
    history = read_history(tmp_path / "run" / "history")
    assert [(e["what"], e["number"]) for e in history] == [
        ("begin", 0), ("failed", 0), ("begin", 1), ("end", 1),
    ]  # fmt: skip
    assert "Connection" in history[1]["why"]


def test_a_storm_whose_faults_do_not_come_about_ends_and_says_how_to_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of which this machine can make no fault at all."""
    monkeypatch.setattr(soak_module, "STORM_MORE_S", 1)
    plan = Plan(SEED, minutes=0.001, faults=1, kinds=(MembershipCorrupt.name,))
    soak = Soak(plan, tmp_path / "run")
    with ChaosServer(tmp_path / "data") as server:
        soak._field = Field(server, [], Names("chaos", "events", "handled", 1))
        server.kill()
        with pytest.raises(TimeoutError, match=f"1 faults came about. Again: .* --seed {SEED} "):
            soak._storm()
        soak._recorder.close()
    others = Soak(replace(plan, kinds=("replica killed",)), tmp_path / "others")
    others._field = soak._field
    with pytest.raises(ValueError, match="it is no Cluster"):
        others._storm()
    others._recorder.close()


@pytest.mark.parametrize(
    ("code", "log", "excused"),
    [
        (ExitCode.REDIS, "", True),
        (ExitCode.REDIS, '{"event": "worker_started"}', False),
        (ExitCode.FAILED, "", False),
        (ExitCode.CONFIGURATION, "", False),
        (ExitCode.BUG, "", False),
        (ExitCode.OK, "", False),
    ],
)
def test_only_a_worker_that_did_not_reach_redis_at_its_start_may_end_by_itself(
    code: ExitCode, log: str, excused: bool, tmp_path: Path
) -> None:
    """Any other end before its start is a crash, and said to be one; each is started again."""
    soak = Soak(Plan(SEED), tmp_path)
    command, log_path = ["sh", "-c", f"echo 'what it said\n{log}'; exit {code:d}"], tmp_path / "said"
    slot = Slot("w0", lambda: LoggedProcess(command, cwd=tmp_path, log_path=log_path, environ={}))
    slot.begin()
    wait_for(lambda: not slot.running, "the process has ended")
    soak._ended(slot)
    wait_for(lambda: not slot.running, "the next has ended, too")
    soak._recorder.close()
    first, again = [e for e in read_history(tmp_path / "history") if e.kind in ("run", "died")]
    assert (first.kind, again["what"]) == ("run" if excused else "died", "started again")
    assert first["code"] == code and "what it said" in first["last"]


def planted(plant: Plant, seed: int) -> Plan:
    """Return a short soak with one mistake in the workers' code, and the fault that brings it out."""
    # A worker that is frozen must be missed, and must wake with something in hand: that takes its time.
    minutes, events, faults = (0.25, 2_500, 12) if plant.name == SLOW else (0.08, 800, 8)
    kind = plant.found_by["soak"].partition(" by ")[2]
    if on_a_cluster := kind in {each.name for each in CLUSTER_KINDS}:
        minutes, faults = 0.3, 3
    return Plan(
        seed, minutes=minutes, events=events, faults=faults, partitions=4, workers=3, producers=1,
        plant=plant.name, kinds=(kind,), handler_ms=150, haste=3, cluster=on_a_cluster,
    )  # fmt: skip


def is_caught(plant: Plant, forge: Forge, folder: Path) -> bool:
    """Whether the mistake is found, in a few tries: it breaks one of the promises that it names."""
    breaks = set(plant.found_by["soak"].partition(" by ")[0].split())
    runs = (run(planted(plant, SEED + number), forge, folder) for number in range(PLANT_TRIES))
    return any(breaks & {violation.promise for violation in each.violations} for each in runs)


@pytest.mark.timeout(600)
def test_a_mistake_in_the_code_is_caught(forge: Forge, tmp_path: Path) -> None:
    """A checker that has not caught a planted fault is not trusted."""
    assert is_caught(PLANTS[SURE], forge, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(600)
@each_found_by("soak")
def test_each_mistake_in_the_code_is_caught(plant: Plant, forge: Forge, tmp_path: Path) -> None:
    """The others take minutes."""
    assert is_caught(plant, forge, tmp_path)


def check_machine(verdict: Verdict, *, lacks: Collection[str] = ()) -> None:
    """Where the suite decides about a change, no kind may be left out for what the machine lacks."""
    not_here = {name: why for name, why in verdict.figures["not_here"].items() if name not in lacks}
    assert not not_here or os.environ.get("CI") != "true", (
        f"CI needs all kinds of faults, and has not {not_here}: apt-get install libfaketime iproute2, "
        "and run as root with the right to make network namespaces and to mount"
    )


def test_what_this_machine_lacks_for_a_fault_fails_where_a_change_is_decided_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Elsewhere it is named in the report, and the other kinds are tried."""
    lacking = Verdict(Plan(SEED), [], {"not_here": {"clock stepped": "libfaketime is not installed"}}, "")
    monkeypatch.delenv("CI", raising=False)
    check_machine(lacking)
    monkeypatch.setenv("CI", "true")
    check_machine(lacking, lacks={"clock stepped"})
    with pytest.raises(AssertionError, match="apt-get install libfaketime"):
        check_machine(lacking)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("share", [pytest.param(0.5, id="half"), pytest.param(1, id="whole")])
def test_the_soak(forge: Forge, tmp_path: Path, share: float) -> None:
    """50,000 events, 16 partitions, 8 workers, 160 faults of all kinds in 4 minutes; or half of that."""
    whole = Plan(SEED)
    events, faults = int(share * whole.events), int(share * whole.faults)
    plan = replace(whole, minutes=share * whole.minutes, events=events, faults=faults)
    verdict = run(plan, forge, tmp_path)
    verdict.check()
    assert sum(verdict.figures["faults"].values()) >= 150 * share
    check_machine(verdict)
    made_or_missing = verdict.figures["faults"].keys() | verdict.figures["not_here"].keys()
    assert {kind.name for kind in LOSSLESS} <= made_or_missing, "each kind that can be had here came"
    assert len(verdict.figures["faults"]) >= 12
    assert sum(verdict.figures["sends"].values()) > 49_000 * share
    assert verdict.figures["rows"] > 40_000 * share  # The rest was refused while memory or the disk was full.


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_soak_on_a_cluster(forge: Forge, tmp_path: Path) -> None:
    """The same history and the same checker; failovers may cost what their producers report, and no more."""
    plan = Plan(SEED, minutes=1.5, events=4_500, faults=50, partitions=8, workers=5, cluster=True)
    verdict = run(plan, forge, tmp_path)
    verdict.check()
    check_machine(verdict, lacks={DiskFull.name})
    assert len(verdict.figures["faults"]) >= 30
    assert {kind.name for kind in CLUSTER_KINDS} <= verdict.figures["faults"].keys(), "each came about"
    assert verdict.figures["rows"] > 3_500
    seen = verdict.figures["one_slot_each"]
    assert seen["crossing"] == 0 and seen["commands_with_keys"] > 5_000
    assert seen["sent_on"].get("MOVED"), "slots moved, or had another primary"
