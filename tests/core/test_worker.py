"""Joining, taking over, handing over and leaving: one worker's conversation with its group."""

from dataclasses import replace

import pytest

from streamworker.core import events as ev
from streamworker.core.control import GroupChanged, PartitionsAcquired, StreamGrown
from streamworker.core.ownership.locks import Stale
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.membership.conversation import CONFLICT_PAUSE_MAX_MS, CONFLICT_PAUSE_MS
from streamworker.core.protocols.membership.joining import PATIENCE_MS
from streamworker.core.protocols.setup import Phase
from streamworker.errors import ConfigurationError, InternalError
from tests.core.workbench import ME, TIMING, Bench, change, group, names, of_type

UNANSWERED = ev.Unanswered(calls.ReadDocument())


# -- joining -------------------------------------------------------------------------------------


def test_the_first_worker_of_a_group_takes_every_partition() -> None:
    """It writes the first document, beats, asks for all locks and runs what it gets.

    It says when it joined by the clock of the server, since people compare these times.
    """
    bench = Bench.started()
    asked = change(bench.read(None))
    assert asked.expected == 0
    assert asked.message == GroupChanged(0, "join", "w1", tuple(range(8)))
    assert asked.membership.owners == (ME,) * 8
    assert (asked.added, asked.removed) == ((ME,), ())
    joined = asked.membership.get(ME)
    assert joined is not None
    assert (joined.joined_ms, joined.name, joined.host, joined.pid) == (5_000, "w1", "host", 1)

    effects = bench.send(calls.DocumentChanged(1_700))
    assert names(effects) == ["StartHeartbeat", "AcquireLocks"]
    assert of_type(effects, ev.AcquireLocks) == [ev.AcquireLocks(tuple(range(8)), ME, 1_700, (ME,))]

    effects = bench.grant(effects)
    assert names(effects) == ["StartRunner"] * 8 + ["PostControl"]
    assert of_type(effects, ev.PostControl) == [
        ev.PostControl(PartitionsAcquired(tuple(range(8)), ME, 1_700))
    ]
    assert bench.core.phase is Phase.ACTIVE


def test_an_assignment_that_does_not_exist_is_a_configuration_error() -> None:
    """It is refused before the worker takes part."""
    with pytest.raises(ConfigurationError, match="no assignment 'best'"):
        Bench(strategy="best")


# -- the document: conflicts and lost answers ----------------------------------------------------


def test_who_is_not_let_in_in_time_joins_by_itself_on_what_the_winner_wrote() -> None:
    """Its message may have been lost: nobody is waited for longer than its patience."""
    bench = Bench()
    bench.jitter = 15
    bench.send(ev.Started())
    bench.read(None)
    bench.refuse(group("w2.1", generation=5))
    assert bench.wait(PATIENCE_MS + 14) == []
    asked = change(bench.wait(1))
    assert asked.expected == 5
    assert asked.membership.ids == ("w2.1", ME)


@pytest.mark.parametrize("is_let_in", [True, False])
def test_who_is_told_to_stop_while_it_waits_to_be_let_in_leaves_if_it_is_let_in_after_all(
    is_let_in: bool,
) -> None:
    """Or its seat would stay behind, and its partitions with it. After its patience nobody lets it in."""
    bench = Bench.joining(None)
    bench.refuse(group("w2.1", generation=5))
    assert bench.send(ev.StopRequested()) == []
    if is_let_in:
        bench.send(ev.ControlReceived((GroupChanged(6, "join", "w1", ()),)))
        assert change(bench.read(group("w2.1", ME, generation=6))).message.cause == "leave"
        return
    assert bench.wait(CONFLICT_PAUSE_MS) == []
    assert bench.core.next_deadline_ms() == PATIENCE_MS, "it sleeps until then"
    assert names(bench.wait(PATIENCE_MS - CONFLICT_PAUSE_MS)) == ["StopHeartbeat", "Finished"]


def test_the_pause_after_lost_races_doubles_up_to_a_second() -> None:
    """A herd that leaves spreads out."""
    bench = Bench.running("w2.1", ME)
    bench.send(ev.StopRequested())
    bench.jitter_asked.clear()
    for generation in range(2_005, 2_015):
        bench.refuse(group("w2.1", ME, generation=generation))
        bench.wait(CONFLICT_PAUSE_MAX_MS)
    assert bench.jitter_asked[:4] == [CONFLICT_PAUSE_MS * n for n in (1, 2, 4, 8)]
    assert bench.jitter_asked[-1] == CONFLICT_PAUSE_MAX_MS


def test_a_document_that_cannot_be_read_leaves_everything_as_it_is() -> None:
    """One of a later release; the locks say what is ours. It is read again at the pace of heartbeats."""
    bench = Bench.running(ME, "w2.1")
    bench.changed(11)
    effects = bench.send(calls.DocumentRead(b'{"generation":11,"v":3,"shards":[]}', 5_000))
    (note,) = effects
    assert isinstance(note, ev.Note)
    assert note.event == "membership_unreadable"
    assert bench.core.membership.generation == 10
    bench.heartbeat()
    assert names(bench.wait(TIMING.heartbeat_interval_ms - 1)) == []
    assert names(bench.wait(1)) == ["ReadDocument"]
    assert names(bench.read(group(ME, "w2.1", generation=11))) == []


def test_answers_to_questions_that_were_not_asked_are_bugs() -> None:
    """A shell that mixes up answers must not go unnoticed."""
    bench = Bench.started()
    with pytest.raises(InternalError, match="not asked for"):
        bench.send(calls.DocumentChanged(5))


# -- a change of the group -----------------------------------------------------------------------


def test_a_worker_acts_on_the_newest_generation_and_not_on_each() -> None:
    """A member that came and went in between moves nothing. What is known is not asked for; many ask once."""
    bench = Bench.running(ME)
    assert bench.changed(10) == []
    bench.changed(11)
    assert names(bench.read(group(ME, generation=12))) == []
    assert bench.core.membership.generation == 12
    news = tuple(GroupChanged(generation, "join", "w2", ()) for generation in (13, 14, 15))
    assert bench.send(ev.ControlReceived(news)) == [calls.ReadDocument()]
    assert bench.changed(16) == []
    assert names(bench.read(group(ME, generation=15))) == ["ReadDocument"]


def test_a_document_that_went_back_behind_a_lock_is_written_anew() -> None:
    """After a failover a lock may know a generation that the document has lost; no request would pass."""
    bench = Bench.joining(group("w2.1", ME, generation=10))
    bench.send(ev.LocksAnswered(ME, (4, 5, 6, 7), dict.fromkeys((4, 5, 6, 7), Stale(12))))
    known = group("w2.1", ME, generation=10)
    asked = change(bench.read(known))
    assert (asked.expected, asked.message.cause, asked.message.moved) == (10, "rollback", ())
    # The server's clock may have gone back too; below this no lock would be given.
    assert asked.at_least == 12
    assert (asked.membership.members, asked.membership.owners) == (known.members, known.owners)
    bench.send(calls.DocumentChanged(2_000))
    (again,) = of_type(bench.wait(TIMING.acquire_retry_ms), ev.AcquireLocks)
    assert (again.partitions, again.generation) == ((4, 5, 6, 7), 2_000)


# -- leaving -------------------------------------------------------------------------------------


def test_a_worker_that_owns_nothing_and_the_last_one_leave_all_the_same_in_two_steps() -> None:
    """Standing by is being a member; whoever joins after the last one takes its partitions."""
    bench = Bench.running(*(f"w{n + 2}.1" for n in range(4)), ME, partitions=4)
    assert change(bench.send(ev.StopRequested())).message.cause == "leave"
    assert change(bench.send(calls.DocumentChanged(11))).message.cause == "left"
    asked = change(Bench.running(ME).send(ev.StopRequested()))
    assert asked.membership.owners == (None,) * 8
    assert (asked.message.cause, asked.message.moved) == ("leave", ())


def test_a_join_without_an_answer_is_undone_if_it_was_done() -> None:
    """Stopped while nobody knows whether it is a member: the document is read first."""
    bench = Bench.joining(None)
    bench.send(ev.StopRequested())
    bench.send(UNANSWERED)
    assert names(bench.wait(TIMING.acquire_retry_ms)) == ["ReadDocument"]
    assert change(bench.read(group(ME))).message.cause == "leave"


def test_a_leaving_worker_that_the_group_removed_drops_its_work_before_it_is_finished() -> None:
    """Peers thought it dead and own its partitions: what it still handles cannot be committed."""
    bench = Bench.running(ME, "w2.1")
    bench.send(ev.StopRequested())
    bench.send(calls.DocumentChanged(11))
    bench.changed(12)
    effects = bench.read(group("w2.1", generation=12))
    assert of_type(effects, ev.DropRunner) == [ev.DropRunner(p, 100 + p) for p in (0, 1, 2, 3)]
    if "ReadDocument" in names(effects):
        effects += bench.read(group("w2.1", generation=12))
    assert names(effects)[-1] == "Finished"


def test_a_finished_worker_does_nothing_more() -> None:
    """Late answers and messages reach it still."""
    bench = Bench()
    bench.send(ev.StopRequested())
    late: list[ev.Event] = [
        ev.StopRequested(),
        ev.Started(),
        ev.DeadlinePassed(),
        calls.DocumentRead(None, 0),
        calls.DocumentChanged(5),
        UNANSWERED,
        ev.ControlReceived((GroupChanged(99, "join", "w2", ()),)),
        calls.PeersProbed(None),
        ev.Unanswered(ev.AcquireLocks((1,), ME, 1, (ME,))),
        ev.RunnerStopped(1, 101),
    ]
    assert [bench.send(event) for event in late] == [[]] * len(late)


# -- the stream grows ----------------------------------------------------------------------------


def test_who_has_seen_that_the_stream_grew_changes_the_document_on_the_same_path_as_a_join() -> None:
    """By compare-and-set; the partitions that it does not work on any more are drained."""
    bench = Bench.running(ME, "w2.1")
    asked = change(bench.send(ev.PartitionsSeen(0, 12)))
    assert (asked.expected, asked.message.cause) == (10, "partitions")
    assert asked.membership.owners == (*(ME,) * 6, *("w2.1",) * 6)
    bench.grant(bench.send(calls.DocumentChanged(11)))
    assert bench.send(ev.PartitionsSeen(0, 12)) == []

    asked = change(bench.send(ev.PartitionsSeen(8, 12)))
    assert asked.membership.owners == (*(None,) * 8, ME, ME, "w2.1", "w2.1")
    effects = bench.send(calls.DocumentChanged(12))
    assert [each.partition for each in of_type(effects, ev.DrainRunner)] == [0, 1, 2, 3, 4, 5]
    bench.stop_runners(effects)

    asked = change(bench.send(ev.PartitionsSeen(0, 12)))
    assert asked.membership.owners == (*(ME,) * 6, *("w2.1",) * 6)


def test_who_knows_less_than_the_document_looks_before_it_works_on_what_it_does_not_know() -> None:
    """It is asked once, and takes the new partitions when it has seen them."""
    grown = group(ME, "w2.1", generation=11).with_active(range(8, 16))
    bench = Bench.running(ME, "w2.1")
    bench.changed(11)
    effects = bench.read(grown)
    assert names(effects) == ["LookAtPartitions", *["DrainRunner"] * 4]
    bench.changed(12)
    assert names(bench.read(replace(grown, generation=12))) == []
    (ask,) = of_type(bench.send(ev.PartitionsSeen(8, 16)), ev.AcquireLocks)
    assert ask.partitions == (8, 9, 10, 11)


def test_a_look_of_before_does_not_undo_what_another_has_seen_since() -> None:
    """Two that have seen different things look again, and do not contend."""
    bench = Bench.running(ME, "w2.1")
    change(bench.send(ev.PartitionsSeen(4, 12)))
    other = group(ME, "w2.1", generation=11).with_active(range(12))
    effects = bench.refuse(other)
    assert "LookAtPartitions" in names(effects)
    assert not of_type(effects + bench.wait(5_000), calls.ChangeDocument)
    assert not of_type(bench.send(ev.PartitionsSeen(0, 12)), calls.ChangeDocument)


def test_a_worker_whose_map_is_behind_does_not_take_partitions_away() -> None:
    """What it has seen holds for the partitions that it knows."""
    bench = Bench.running(ME, "w2.1")
    bench.changed(11)
    bench.read(group(ME, "w2.1", generation=11).with_active(range(8, 16)))
    assert names(bench.send(ev.PartitionsSeen(0, 8))) == []
    asked = change(bench.send(ev.PartitionsSeen(0, 16)))
    assert asked.membership.active == range(16)


def test_a_message_that_the_stream_grew_makes_a_worker_look() -> None:
    """Once, however many messages there are."""
    bench = Bench.running(ME)
    message = StreamGrown("8+12", "ann")
    assert bench.send(ev.ControlReceived((message, message))) == [ev.LookAtPartitions()]
