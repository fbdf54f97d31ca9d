"""The checker finds what it is there for, and nothing where nothing is wrong.

Each test takes a clean run, written by hand, and breaks one promise in it.
"""

import ast
import copy
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import Judge, Limits, Violation
from tests.chaos.dump import dump_of, parse_id
from tests.chaos.history import Event, Recorder, read_history
from tests.chaos.timeline import draw

HERE = Path(__file__).parent


class Story:
    """A clean run of two workers on one partition, as files would tell it.

    ``a`` commits four records at epoch 1, is overtaken by ``b``, which commits four more at epoch 2, a
    doomed one among them. A commit of ``a`` comes late and is fenced; one of ``b`` is sent twice.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.limits = Limits(silent_ms=500)
        nothing = {"owner": "", "log": [], "waiting": 0}
        self.dump: dict[str, Any] = {
            "partitions": {"0": {"checkpoint": "108-0", "dead": {"106-0": "Doomed"}, **nothing}},
            "members": [], "beats": [], "connections": [], "control": 12,
        }  # fmt: skip
        for seq in range(1, 9):
            self._send(seq)
        self.lock(200, "a", 1, "0-0")
        self.call(210, 1, [101, 102])
        self.commit(220, 230, "a", 1, "0-0", "102-0", "OK")
        self.call(240, 1, [103, 104])
        self.commit(250, 260, "a", 1, "102-0", "104-0", "OK")
        self.lock(300, "b", 2, "104-0")
        self.call(305, 1, [105, 106])
        self.commit(310, 320, "a", 1, "104-0", "106-0", "FENCED")
        self.call(330, 2, [105, 106])
        self.commit(340, 350, "b", 2, "104-0", "106-0", "UNKNOWN", rows=1)
        self.commit(360, 370, "b", 2, "104-0", "106-0", "DUP", tries=1, rows=1)
        self.call(380, 2, [107, 108])
        self.commit(390, 400, "b", 2, "106-0", "108-0", "OK")
        self.write(500, "run", what="healed")
        self.write(600, "run", what="settled")
        self.entry(2, "0-0", [101, 102], "a", 1)
        self.entry(4, "102-0", [103, 104], "a", 1)
        self.entry(5, "104-0", [105], "b", 2, last="106-0")
        self.entry(7, "106-0", [107, 108], "b", 2)

    def write(self, at: float, kind: str, **fields: Any) -> dict[str, Any]:
        self.events.append({"at": at, "kind": kind, **fields})
        return self.events[-1]

    def _send(self, seq: int) -> None:
        who = {"producer": "p", "seqs": [seq]}
        self.write(100 + seq, "send", what="invoke", keys=[f"k{seq % 2}"], doomed=[6] * (seq == 6), **who)
        self.write(120 + seq, "send", what="ok", places=[[0, f"{100 + seq}-0"]], **who)

    def lock(self, at: float, owner: str, epoch: int, checkpoint: str) -> None:
        self.write(at, "lock", what="acquired", partition=0, owner=owner, epoch=epoch, checkpoint=checkpoint)

    def call(self, at: float, epoch: int, ids: list[int], what: str = "begin") -> None:
        self.write(at, "exec", what=what, partition=0, epoch=epoch, ids=[f"{n}-0" for n in ids])

    def commit(
        self, sent: float, answered: float, owner: str, epoch: int, previous: str, new: str, code: str,
        *, tries: int = 0, rows: int = 2,
    ) -> None:  # fmt: skip
        words = {"partition": 0, "owner": owner, "epoch": epoch, "previous": previous, "new": new}
        words |= {"rows": rows, "tries": tries}
        self.write(sent, "commit", what="sent", **words)
        self.write(answered, "commit", what="answered", code=code, **words)

    def entry(
        self, rows_so_far: int, prev: str, ids: list[int], owner: str, epoch: int, last: str = ""
    ) -> None:
        self.part["log"].append(
            {
                "id": f"{rows_so_far}-0", "rows": len(ids), "first": f"{ids[0]}-0",
                "last": last or f"{ids[-1]}-0", "prev": prev, "epoch": epoch, "owner": owner,
                "values": [["p", f"k{n % 2}", n - 100, f"{n}-0"] for n in ids], "bad": "",
            }
        )  # fmt: skip

    def ends(self, *times: float) -> None:
        for at in times:
            self.call(at, 2, [107, 108], "end")

    @property
    def part(self) -> dict[str, Any]:
        found: dict[str, Any] = self.dump["partitions"]["0"]
        return found

    @property
    def log(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.part["log"]
        return found

    def find(self, kind: str, **fields: Any) -> dict[str, Any]:
        return next(e for e in self.events if e["kind"] == kind and fields.items() <= e.items())

    def forget(self, *events: dict[str, Any]) -> None:
        self.events = [event for event in self.events if event not in events]

    def history(self) -> list[Event]:
        return [
            Event(e.pop("at"), e.pop("kind"), e.get("owner", "soak"), e)
            for e in sorted(copy.deepcopy(self.events), key=lambda e: e["at"])
        ]

    def judged(self) -> Judge:
        judge = Judge(self.history(), dump_of(copy.deepcopy(self.dump)), self.limits)
        judge.judge()
        return judge

    def judge(self) -> list[Violation]:
        return self.judged().violations


Break = Callable[[Story], object]
BROKEN: dict[str, tuple[str, Break]] = {
    "a confirmed record is missing": ("I1", lambda s: s.log.pop()),
    "a confirmed record was replaced": ("I1", lambda s: s.log[0]["values"][0].__setitem__(2, 77)),
    "a confirmed record is among the dead": (
        "I1",
        lambda s: (s.log[0]["values"].pop(0), s.log[0].update(rows=1), s.part["dead"].update({"101-0": "?"})),
    ),
    "a doomed record is nowhere": ("I1", lambda s: s.part["dead"].clear()),
    "a poison entry is nowhere": ("I1", lambda s: s.write(150, "poison", partition=0, id="105-1")),
    "an entry is in the log twice": ("I2", lambda s: s.entry(9, "108-0", [107, 108], "b", 2)),
    "an entry is in the log and dead": ("I2", lambda s: s.part["dead"].update({"101-0": "?"})),
    "a send was written twice": ("I2", lambda s: s.log[-1]["values"][1].__setitem__(2, 7)),
    "an owner handles an entry twice": ("I2", lambda s: s.ends(385, 388)),
    "an entry is twice in one batch": ("I2", lambda s: s.call(385, 2, [107, 107], "end")),
    "the log is out of order": ("I3", lambda s: s.log[1]["values"].reverse()),
    "a key is out of order": (
        "I3",
        lambda s: (s.log[0]["values"][0].__setitem__(2, 3), s.log[1]["values"][0].__setitem__(2, 1)),
    ),
    "an epoch goes down": ("I4", lambda s: s.log[-1].update(epoch=1)),
    "an epoch has two owners": ("I4", lambda s: s.log[1].update(owner="c")),
    "a lock has two owners at one epoch": ("I4", lambda s: s.lock(310, "c", 2, "104-0")),
    "a zombie's commit is accepted": ("I4", lambda s: s.find("commit", code="FENCED").update(code="OK")),
    "a hole between two entries": ("I5", lambda s: s.log.pop(1)),
    "an entry begins before the end of the last": ("I5", lambda s: s.log[1].update(prev="101-0")),
    "an id does not count the rows": ("I5", lambda s: s.log[2].update(id="6-0")),
    "an entry is damaged": ("I5", lambda s: s.log[0].update(bad="its CRC is wrong")),
    "an entry holds what it does not say": ("I5", lambda s: s.log[0].update(last="101-0")),
    "the checkpoint is behind the log": ("I5", lambda s: s.part.update(checkpoint="106-0")),
    "the checkpoint is past the log": ("I5", lambda s: s.part.update(checkpoint="109-0")),
    "OK for what is not there": ("I6", lambda s: s.commit(410, 420, "b", 2, "108-0", "109-0", "OK")),
    "DUP for what is not there": (
        "I6",
        lambda s: s.commit(410, 420, "b", 2, "108-0", "109-0", "DUP", tries=1),
    ),
    "FENCED for what is there": ("I6", lambda s: s.find("commit", code="OK").update(code="FENCED")),
    "GAP for what is there": ("I6", lambda s: s.find("commit", code="OK").update(code="GAP")),
    "a refused send is there": (
        "I6",
        lambda s: s.find("send", what="ok", seqs=[3]).update(what="refused", places=None),
    ),
    "a send is elsewhere than was said": (
        "I6",
        lambda s: s.find("send", what="ok", seqs=[3]).update(places=[[0, "103-5"]]),
    ),
    "nobody sent what is there": (
        "I6",
        lambda s: s.forget(s.find("send", what="invoke", seqs=[4]), s.find("send", what="ok", seqs=[4])),
    ),
    "what cannot be handled was": ("I6", lambda s: s.find("send", seqs=[3]).update(doomed=[3])),
    "nobody executed what is there": ("I6", lambda s: s.forget(s.find("exec", ids=["103-0", "104-0"]))),
    "entries wait in the end": ("I7", lambda s: s.part.update(waiting=3)),
    "it never settles": ("I7", lambda s: s.forget(s.find("run", what="settled"))),
    "who asks what is lost has no answer": (
        "I7",
        lambda s: s.write(10_600, "verified", producer="p", since=450),
    ),
    "it settles late": ("I7", lambda s: s.find("run", what="settled").update(at=500_000)),
    "a partition stands still for minutes, and it is said": (
        "I7",
        lambda s: (
            [e.update(at=e["at"] + 200_000) for e in s.events if e["at"] > 320],
            s.write(9_000, "said", event="partition_stalled", partition=0),
        ),
    ),
    "a lock is left": ("I8", lambda s: s.part.update(owner="b")),
    "a member is left": ("I8", lambda s: s.dump.update(members=["b"])),
    "a heartbeat is left": ("I8", lambda s: s.dump.update(beats=["b"])),
    "a connection is left": ("I8", lambda s: s.dump.update(connections=["b"])),
    "the control stream grows": ("I8", lambda s: s.dump.update(control=50_000)),
    "a worker ends by itself": ("I8", lambda s: s.write(300, "died", name="w1", code=1, last="boom")),
    "the table lacks a row": ("I9", lambda s: table(s).pop()),
    "the table has a row twice": ("I9", lambda s: table(s).append([1, "p", "k1", 1])),
    "the table is out of order": ("I9", lambda s: table(s).reverse()),
    "a partition stands still in silence": (
        "I10",
        lambda s: [e.update(at=e["at"] + 9_000) for e in s.events if e["at"] > 320],
    ),
    "the state is ahead of the log": ("I5", lambda s: s.part.update(state={"sum": 3, "flushed": 5})),
    "a row is not passed on": ("I1", lambda s: passed(s)["log"][0]["values"].pop()),
    "a row is passed on twice": ("I2", lambda s: passed(s)["log"][0]["values"].append(["p", "k1", 7, "9-9"])),
    "nobody sent what is passed on": (
        "I6",
        lambda s: passed(s)["log"][0]["values"].append(["p", "k1", 77, "9-9"]),
    ),
    "a row is passed on out of order": ("I3", lambda s: passed(s)["log"][0]["values"].reverse()),
    "the table by key is ahead of the log": ("I5", lambda s: passed(s)["totals"]["k0"].__setitem__(0, 4)),
    "a planned time is left out": ("I2", lambda s: passed(s)["log"][0]["values"].pop(1)),
    "a planned time ran twice": ("I2", lambda s: passed(s).update(waiting=0)),
    "calls of one key overlap": ("I3", lambda s: s.call(215, 1, [101], "overlaps")),
}


def table(story: Story) -> list[list[Any]]:
    """Return the Spark table of a story; made if there is none."""
    rows = [row for entry in story.log for row in entry["values"]]
    made = {"committed": len(rows), "rows": [[n, *row[:3]] for n, row in enumerate(rows, start=1)]}
    found: list[list[Any]] = story.dump.setdefault("table", {"0": made})["0"]["rows"]
    return found


def passed(story: Story) -> dict[str, Any]:
    """Return what another group has of a story, and of three times of which the last waits; made once."""
    if "others" not in story.dump:
        rows = [["sweep", "sweep", tick, f"{tick}-0"] for tick in (41, 42)]
        rows[:0] = [row for entry in story.log for row in entry["values"]][:1]
        rows += [row for entry in story.log for row in entry["values"]][1:]
        rest = {"members": [], "beats": [], "connections": [], "control": 0}
        empty = {"checkpoint": "0-0", "owner": "", "dead": {}, "log": [], "waiting": 0}
        log = {**story.log[0], "values": rows}
        totals = {name: kept(rows, name) for name in ("sweep", "k0", "k1")}
        counted = {**empty, "log": [log], "waiting": 1, "totals": totals}
        timers = {**empty, "state": {"ticks": 3}}
        story.part["state"] = {"sum": 2, "flushed": 5}
        story.dump["others"] = {
            "counted": {"partitions": {"0": counted}, **rest},
            "timers": {"partitions": {"0": timers}, **rest},
        }
    found: dict[str, Any] = story.dump["others"]["counted"]["partitions"]["0"]
    return found


def kept(rows: list[list[Any]], key: str) -> list[int]:
    seqs = [seq for _, name, seq, _ in rows if name == key]
    return [len(seqs), reduce(lambda order, seq: zlib.crc32(b"%d" % seq, order), seqs, 0)]


def test_a_clean_run_is_clean() -> None:
    """Also with dead letters, a fenced zombie, an answer that was lost, a table, and a chain."""
    story = Story()
    table(story)
    passed(story)
    assert story.judge() == []


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_promise_is_found(what: str) -> None:
    promise, break_it = BROKEN[what]
    story = Story()
    break_it(story)
    found = story.judge()
    assert promise in {violation.promise for violation in found}, found
    for violation in found:
        assert draw(story.history(), violation)


def test_every_promise_has_a_planted_violation() -> None:
    """Else a judge of one of them might find nothing at all."""
    assert {promise for promise, _ in BROKEN.values()} == {f"I{number}" for number in range(1, 11)}


def told(*steps: Break) -> Story:
    """Return a story in which something else happens besides."""
    story = Story()
    for step in steps:
        step(story)
    return story


def handles_again(story: Story) -> None:
    """Let an owner handle twice what it had not committed in between."""
    for at in (333, 355):
        story.call(at, 2, [105, 106], "end")


def removed(story: Story, at: float) -> None:
    """Let an owner be removed from its group, so that it may not release its lock any more."""
    story.part.update(owner="b")
    story.write(at, "member", what="lost", member="b")


def fail_over(story: Story, at: float = 450, *, partitions: Sequence[int] = (0,), ends: bool = True) -> None:
    """Let a failover that may lose something of some partitions go on for 5 ms, or until the end."""
    words = {"name": "primary killed", "target": "node 0", "number": 1}
    for what, when in (("begin", at), ("end", at + 5))[: 1 + ends]:
        story.write(when, "fault", what=what, may_lose=list(partitions), **words)


def failed_over(*, said: bool = True, said_of: int = 0, asked: bool = True, **how: Any) -> Story:
    """Return a story in which a failover lost the last entry of the log, and its two records."""
    story = Story()
    story.log.pop()
    story.part.update(checkpoint="106-0")
    fail_over(story, **how)
    if said:
        lost = {"producer": "p", "partition": said_of, "first": "107-0", "last": "108-0", "entries": 2}
        story.write(480, "lost", is_all=True, **lost)
    if asked:
        story.write(490, "verified", producer="p", since=485.0)
    return story


def failed_over_with_replicas() -> Story:
    story = failed_over()
    story.limits = replace(story.limits, replicated=True)
    return story


def killed_and_sends_there_later() -> Story:
    story = failed_over(said=False, asked=False)
    who = {"producer": "p", "seqs": [99]}
    story.write(9_000, "send", what="invoke", keys=["k"], **who)
    story.write(9_100, "send", what="ok", places=[[0, "120-0"]], **who)
    return story


def asked_in_vain(*faults: tuple[float, float, str]) -> Story:
    """Return a story whose producer asks for 40 s what was lost, while faults take hold of something."""
    story = failed_over(asked=False)
    for number, (start, end, takes) in enumerate(faults, start=10):
        words = {"name": "a fault", "target": "", "may_lose": [], "number": number, "takes": [takes]}
        story.write(start, "fault", what="begin", **words)
        story.write(end, "fault", what="end", **words)
    story.write(41_000, "verified", producer="p-7", since=1_000.0)
    return story


def in_turn(takes: str) -> tuple[tuple[float, float, str], ...]:
    return (900, 15_000, takes), (14_000, 25_000, takes), (34_000, 45_000, takes)


def through(*broken: str, at: float = 450, partition: int = 0) -> Story:
    """Return a story with a failover, in which something else is broken besides."""
    return told(lambda s: fail_over(s, at, partitions=[partition]), *(BROKEN[what][1] for what in broken))


def reported_and_there() -> Story:
    story = failed_over()
    story.find("lost").update(first="103-0")
    return story


def reported_and_sent_anew() -> Story:
    """Return a story in which what is sent after a loss got the ids of what was lost."""
    story = through()
    lost = {"producer": "p", "partition": 0, "first": "107-0", "last": "108-0", "entries": 2}
    story.write(126, "lost", is_all=True, **lost)
    return story


def given_again(at: float, *owners: str, partition: int = 0) -> Story:
    """Return a story in which others take the lock at the epoch that its owner had before the failover."""
    story = through(partition=partition)
    for number, owner in enumerate(owners):
        story.lock(at + 10 * number, owner, 2, "108-0")
    return story


def overtaken(taken_at: float, at: float) -> Story:
    """Return a story in which an owner commits after another one has taken the lock."""
    story = through()
    story.lock(taken_at, "c", 5, "108-0")
    story.commit(at, at + 10, "a", 1, "108-0", "110-0", "OK", rows=0)
    return story


FELT = ("server", "shard 1", "line p", "process p")
"""What a fault of it keeps producer ``p`` from an answer."""

STORIES: dict[str, tuple[Story, set[str]]] = {
    "an owner handles again what it has not committed": (told(handles_again), {"I2"}),
    "and has taken the partition anew meanwhile": (
        told(handles_again, lambda s: s.lock(352, "b", 2, "104-0")),
        set(),
    ),
    "a lock is left of a member that was removed in the end": (told(lambda s: removed(s, 480)), set()),
    "a lock is left of a member that was removed long before": (told(lambda s: removed(s, 90)), {"I8"}),
    "a partition stands still, and somebody says so": (
        told(
            BROKEN["a partition stands still in silence"][1],
            lambda s: s.write(5_000, "said", event="partition_stalled", partition=0),
        ),
        set(),
    ),
    "a failover, and nothing is lost": (through(), set()),
    "what is lost is said": (failed_over(), set()),
    "what is lost is not said": (failed_over(said=False), {"I1"}),
    "it is said of another partition": (failed_over(said_of=1), {"I1"}),
    "it was a failover of another partition": (failed_over(partitions=[1]), {"I1", "I6"}),
    "it was confirmed long after it": (failed_over(at=-20_000), {"I1", "I6"}),
    "its answer was read after it": (failed_over(at=100), set()),
    "who was killed before it could notice says nothing": (failed_over(said=False, asked=False), set()),
    "who has sent there since says nothing": (killed_and_sends_there_later(), {"I1"}),
    **{f"faults of {takes} keep it from asking": (asked_in_vain(*in_turn(takes)), set()) for takes in FELT},
    "it asks in vain without a fault": (asked_in_vain(), {"I7"}),
    "it asks in vain after a fault": (asked_in_vain((900, 25_000, "server")), {"I7"}),
    "it asks in vain before a fault": (asked_in_vain((15_000, 41_000, "server")), {"I7"}),
    "it asks in vain beside faults of others": (
        asked_in_vain((900, 41_000, "line w0"), (900, 41_000, "process p1"), (900, 41_000, "line pp")),
        {"I7"},
    ),
    "what was at a replica is lost": (failed_over_with_replicas(), {"I1", "I6"}),
    "it never ended": (failed_over(ends=False), set()),
    "what is said to be lost is there": (reported_and_there(), {"I6"}),
    "what is sent after a loss has the ids of what is lost": (reported_and_sent_anew(), set()),
    "an epoch goes down": (through("an epoch goes down"), {"I4", "I6"}),
    "an epoch has two owners": (through("an epoch has two owners"), {"I4"}),
    "a hole": (through("a hole between two entries"), {"I5"}),
    "an entry is there twice": (through("an entry is in the log twice"), {"I2", "I3", "I5"}),
    "out of order": (through("the log is out of order"), {"I3"}),
    "OK shortly before it": (through("OK for what is not there"), set()),
    "OK long before it": (through("OK for what is not there", at=20_000), {"I6"}),
    "poison, which nobody can report": (through("a poison entry is nowhere"), set()),
    "poison of another partition": (through("a poison entry is nowhere", partition=1), {"I1"}),
    "an epoch is given again after it": (given_again(9_000, "c"), set()),
    "an epoch is given again after it, twice": (given_again(9_000, "c", "d"), {"I4"}),
    "an epoch is given again in it: nobody can tell": (given_again(460, "c", "d"), set()),
    "an epoch is given again elsewhere": (given_again(9_000, "c", partition=1), {"I4"}),
    "overtaken by a lock that was taken back": (overtaken(440, 9_000), {"I6"}),
    "overtaken in it: nobody can tell": (overtaken(460, 470), set()),
    "overtaken after it": (overtaken(8_900, 9_000), {"I4", "I6"}),
}
"""What is found, and what is excused. A replica that takes over was seconds behind at most."""


@pytest.mark.parametrize("what", STORIES)
def test_what_may_be_is_excused_and_nothing_else(what: str) -> None:
    """Above all what a failover may have taken back."""
    story, found = STORIES[what]
    assert {violation.promise for violation in story.judge()} == found


def test_figures_tell_what_failovers_cost_and_which_faults_did_not_come_about() -> None:
    """Of a fault that failed half may have happened: what it cost is excused all the same."""
    story = failed_over()
    story.find("fault", what="end").update(what="failed", why="nobody took over")
    judge = story.judged()
    assert judge.violations == []
    figures = judge.figures()
    assert (figures["faults"], figures["faults_that_failed"]) == ({}, {"primary killed": 1})
    assert figures["gone_by_failover"] == {
        "reported_by_id": 2, "of_producers_killed_before": 0, "reports": 2
    }  # fmt: skip
    killed = failed_over(said=False, asked=False).judged()
    assert killed.figures()["gone_by_failover"]["of_producers_killed_before"] == 2


def test_the_window_shows_what_happened_around_a_violation_and_little_else() -> None:
    """The zombie's commit, who had the lock, and the fault that went on; no other partition's events."""
    story = Story()
    story.write(180, "fault", what="begin", name="worker frozen", target="w1", may_lose=[], number=1)
    story.write(305, "lock", what="acquired", partition=7, owner="z", epoch=9, checkpoint="0-0")
    BROKEN["a zombie's commit is accepted"][1](story)
    violation = next(v for v in story.judge() if v.promise == "I4")
    picture = draw(story.history(), violation)
    assert "fault begin name=worker frozen target=w1" in picture
    assert "lock acquired owner=b epoch=2" in picture
    assert "commit answered code=OK owner=a epoch=1 previous=104-0 new=106-0" in picture
    assert "owner=z" not in picture and "epoch=9" not in picture
    assert len(picture.splitlines()) < 30


def test_histories_are_read_from_files_and_half_lines_are_passed_over(tmp_path: Path) -> None:
    """A worker's log is history too: its commits and locks, and what it warned of, by one clock."""
    recorder = Recorder(tmp_path / "p0.jsonl")
    recorder.write("send", what="invoke", producer="p", seqs=[1], keys=["k"])
    recorder.close()
    with (tmp_path / "p0.jsonl").open("a") as file:
        file.write('{"kind":"send","at":12')
    stamp = "2026-01-01T00:00:0{}.000000Z"
    lines = [
        {"event": "heartbeat_failed", "level": "warning", "timestamp": stamp.format(1)},
        {
            "event": "lock_acquired",
            "level": "debug",
            "timestamp": stamp.format(2),
            "at_ms": 5_000,
            "partition": 3,
        },
        {"event": "w1  Started", "level": "debug", "timestamp": stamp.format(3)},
    ]
    (tmp_path / "w1.log").write_text("Traceback\n" + "".join(json.dumps(line) + "\n" for line in lines))
    events = read_history(tmp_path)
    assert [(event.kind, event.who) for event in events if event.who == "w1"] == [
        ("said", "w1"),
        ("lock", "w1"),
    ]
    said, lock = (event for event in events if event.who == "w1")
    assert (said.at, lock.at, lock["what"]) == (4_000, 5_000, "acquired")
    assert [event["seqs"] for event in events if event.kind == "send"] == [[1]]
    assert parse_id("12-3") == (12, 3)


@pytest.mark.parametrize("module", ["checker", "history", "dump", "lapses", "timeline"])
def test_the_checker_knows_nothing_of_what_it_checks(module: str) -> None:
    """It imports nothing of the project, in any way: a mistake that both shared would not be found."""

    def names() -> Iterator[str]:
        for node in ast.walk(ast.parse((HERE / f"{module}.py").read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or ""

    apart = {f"tests.chaos.{name}" for name in ("checker", "history", "dump", "lapses", "timeline")}
    for name in names():
        assert not name.startswith("streamworker"), name
        assert not name.startswith("tests") or name in apart, name
