"""One worker in a group that shares by load: who measures, who looks, and what comes of it."""

from dataclasses import replace

from streamworker.core import events as ev
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.membership.settings import BalanceRules
from tests.core.workbench import ME, TIMING, Bench, beat, group, of_type

RULES = BalanceRules()
INTERVAL_MS = TIMING.heartbeat_interval_ms


def weighted(*ids: str, generation: int = 10) -> Membership:
    """Return a group with 8 partitions that shares by load."""
    return replace(group(*ids, generation=generation), strategy="weighted")


def look(bench: Bench, loads: dict[str, int]) -> list[ev.Effect]:
    """Let the next look come; each member measured so much of each of its partitions."""
    (asked,) = of_type(bench.wait(RULES.interval_ms), calls.ReadLoads)
    assert asked == calls.ReadLoads()
    owned = bench.core.membership.owned_by
    return bench.send(
        calls.LoadsRead({each: dict.fromkeys(owned(each), load) for each, load in loads.items()}, 60_000)
    )


def decision(bench: Bench) -> calls.ChangeDocument:
    """Look until partitions of ours are to be given away."""
    for _ in range(RULES.looks - 1):
        assert of_type(look(bench, {ME: 200, "w2.1": 10}), calls.ChangeDocument) == []
    (change,) = of_type(look(bench, {ME: 200, "w2.1": 10}), calls.ChangeDocument)
    return change


def test_load_is_measured_from_when_the_group_shares_by_it_until_it_does_not() -> None:
    """By the document, whatever this worker's own setting is."""
    bench = Bench.started()
    assert of_type(bench.read(weighted(ME, "w2.1")), calls.ReportLoad) == [
        calls.ReportLoad(RULES.interval_ms)
    ]
    bench.changed(11)
    assert of_type(bench.read(weighted(ME, "w2.1", generation=11)), calls.ReportLoad) == []
    bench.changed(12)
    assert of_type(bench.read(group(ME, "w2.1", generation=12)), calls.ReportLoad) == [calls.ReportLoad(0)]


def test_the_next_one_looks_while_the_first_is_silent() -> None:
    """It need not be dead: a slow one is not removed for long."""
    bench = Bench.member_of(weighted("w2.1", ME))
    asked: list[ev.Effect] = []
    for _ in range(4):
        asked += bench.heartbeat(after_ms=INTERVAL_MS, beats={"w2.1": beat(1, 2)})
    assert asked == [calls.ProbePeers((2,))]
    assert len(of_type(bench.wait(RULES.interval_ms), calls.ReadLoads)) == 1
    bench.send(ev.Unanswered(calls.ReadLoads()))
    bench.heartbeat(beats={"w2.1": beat(2, 2)})
    assert of_type(bench.wait(2 * RULES.interval_ms), calls.ReadLoads) == []


def test_what_the_balancer_decides_is_a_change_of_the_document_like_any_other() -> None:
    """With its cause and the giver's name, compared and set, and followed by ourselves."""
    bench = Bench.member_of(weighted(ME, "w2.1"))
    bench.heartbeat()
    change = decision(bench)
    assert (change.expected, change.message.cause, change.message.member) == (10, "balance", "w1")
    assert change.message.moved == (0,)
    assert (change.added, change.removed) == ((), ())
    assert change.membership.weighed == (200, 200, 200, 200, 10, 10, 10, 10)
    effects = bench.send(calls.DocumentChanged(11))
    assert of_type(effects, ev.DrainRunner) == [ev.DrainRunner(0, 100)]


def test_a_decision_is_dropped_when_the_group_changed_meanwhile() -> None:
    """It was made for other owners."""
    bench = Bench.member_of(weighted(ME, "w2.1"))
    bench.heartbeat()
    decision(bench)
    effects = bench.refuse(weighted(ME, "w2.1", "w3.1", generation=12))
    assert of_type(effects + bench.wait(RULES.interval_ms - 1), calls.ChangeDocument) == []


def test_a_decision_on_a_document_that_is_being_read_anew_is_dropped_when_that_is_another() -> None:
    """What was decided meanwhile says what the old one said, and would undo the join."""
    bench = Bench.member_of(weighted(ME, "w2.1"))
    bench.heartbeat()
    for _ in range(RULES.looks - 1):
        look(bench, {ME: 200, "w2.1": 10})
    assert of_type(bench.changed(12), calls.ReadDocument) == [calls.ReadDocument()]
    assert of_type(look(bench, {ME: 200, "w2.1": 10}), calls.ChangeDocument) == [], "the read is under way"
    effects = bench.read(weighted(ME, "w2.1", "w3.1", generation=12))
    assert of_type(effects, calls.ChangeDocument) == []


def test_a_look_without_an_answer_is_made_again_and_only_then() -> None:
    """Nothing is asked while an answer may still come, and other calls that fail say nothing of it."""
    bench = Bench.member_of(weighted(ME, "w2.1"))
    for call, looks in (
        (None, 1),
        (calls.ProbePeers(()), 0),
        (calls.ReadDocument(), 0),
        (calls.ReadLoads(), 1),
    ):
        effects = [] if call is None else bench.send(ev.Unanswered(call))
        effects += bench.wait(3 * RULES.interval_ms)
        assert len(of_type(effects, calls.ReadLoads)) == looks, call
