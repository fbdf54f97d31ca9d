"""The claim protocol, sentence by sentence: one test a rule, by events and effects."""

from collections.abc import Mapping

import pytest

from streamworker.core import events as ev
from streamworker.core.control import GroupChanged, PartitionsReleased
from streamworker.core.data.entries import ZERO
from streamworker.core.ownership.locks import Acquired, Stale
from streamworker.core.protocols.claim.events import (
    NO_ENTRY,
    CheckpointsUpdated,
    ClaimPartitions,
    GiveUpPartitions,
    ListOwnership,
    OwnershipEntry,
    OwnershipListed,
    PartitionsClaimed,
    PartitionsGivenUp,
    UpdateCheckpoints,
)
from streamworker.core.protocols.claim.protocol import ClaimCore
from streamworker.core.protocols.claim.settings import Claim
from streamworker.errors import ConfigurationError
from streamworker.settings import Settings
from tests.core.workbench import Node, of_type, setup_of

ME, OTHER, THIRD = "w1.a", "w2.b", "w3.c"
CYCLE, EXPIRY, RETRY = 1_000, 10_000, 200
SERVER_AHEAD = 5_000_000
UNANSWERED = ev.Unanswered(ListOwnership())


class ClaimNode(Node[ClaimCore]):
    """One core and its clock; random choices are always the first."""

    def __init__(self, partitions: int = 4) -> None:
        super().__init__(ClaimCore(setup_of(Claim(cycle_ms=CYCLE, expiry_ms=EXPIRY), partitions)))
        self.partitions = partitions

    @property
    def server_ms(self) -> int:
        return self.now_ms + SERVER_AHEAD

    def entry(self, partition: int, owner: str, etag: int = 7, *, age_ms: int = 0) -> OwnershipEntry:
        return OwnershipEntry(partition, owner, etag, self.server_ms - age_ms, "5-0")

    def listed(self, *entries: OwnershipEntry) -> list[ev.Effect]:
        return self.send(OwnershipListed(self.partitions, entries, self.server_ms))

    def claimed(
        self, won: Mapping[int, int], refused: Mapping[int, OwnershipEntry | None] | None = None
    ) -> list[ev.Effect]:
        return self.send(PartitionsClaimed(won, refused or {}))

    def renewed(
        self, updated: Mapping[int, int], refused: Mapping[int, OwnershipEntry | None] | None = None
    ) -> list[ev.Effect]:
        return self.send(CheckpointsUpdated(updated, refused or {}))

    def acquired(self, *partitions: int, epoch: int = 3) -> list[ev.Effect]:
        lock = Acquired(epoch, ZERO, 0, 0, "log")
        return self.send(ev.LocksAnswered(ME, partitions, dict.fromkeys(partitions, lock)))

    def owner_of_one(self) -> "ClaimNode":
        """Begin with partition 0 claimed and running, the other three somebody else's."""
        self.send(ev.Started())
        self.listed(*(self.entry(p, owner) for p, owner in ((1, OTHER), (2, OTHER), (3, THIRD))))
        self.claimed({0: 100})
        self.acquired(0)
        return self


def begun(partitions: int = 1) -> ClaimNode:
    """Return a node that has begun, and waits for its first list."""
    node = ClaimNode(partitions)
    node.send(ev.Started())
    return node


def claiming(partitions: int = 1) -> ClaimNode:
    """Return a node that claims partition 0, since nobody has any."""
    node = begun(partitions)
    assert node.listed() == [ClaimPartitions(ME, {0: NO_ENTRY})]
    return node


# -- the cycle ---------------------------------------------------------------------------------


def test_the_cycle_begins_when_the_worker_comes_up_and_repeats() -> None:
    """At once, and then "periodically every x seconds"."""
    node = ClaimNode()
    assert node.send(ev.Started()) == [ListOwnership()]
    others = [node.entry(p, f"w{p}.x") for p in range(4)]
    assert node.listed(*others) == []
    assert node.wait(CYCLE - 1) == []
    assert node.wait(1) == [ListOwnership()]


@pytest.mark.parametrize("added", [False, True], ids=["five from the beginning", "four that were added"])
def test_a_cycle_claims_at_most_one_new_partition_of_those_that_there_are_now(added: bool) -> None:
    """Each run claims "at most 1 new partition"; their number "may no longer be immutable"."""
    node = claiming(1 if added else 5)
    assert not of_type(node.claimed({0: 100}), ClaimPartitions)
    node.acquired(0)
    if added:
        node.partitions = 5
        node.wait(CYCLE)
        node.renewed({0: 100})
        assert node.listed(node.entry(0, ME, 100)) == [ev.LookAtPartitions()]
        assert not of_type(node.send(ev.PartitionsSeen(0, 5)), ClaimPartitions)
    assert of_type(node.wait(CYCLE), UpdateCheckpoints) == [UpdateCheckpoints(ME, {0: 100})]
    assert node.renewed({0: 101}) == [ListOwnership()]
    assert node.listed(node.entry(0, ME, 101)) == [ClaimPartitions(ME, {1: NO_ENTRY})]


def test_entries_that_were_not_modified_for_the_expiry_are_removed_from_the_list() -> None:
    """Those "not modified for more than y seconds"; their owner's lock is not waited for."""
    node = begun()
    assert node.listed(node.entry(0, OTHER, 7, age_ms=EXPIRY)) == []
    node.wait(CYCLE)
    assert node.listed(node.entry(0, OTHER, 7, age_ms=EXPIRY + 1)) == [ClaimPartitions(ME, {0: 7})]
    assert ev.AcquireLocks((0,), ME, 100, ()) in node.claimed({0: 100})


def test_our_own_clock_has_no_part_in_it() -> None:
    """A worker whose clock is minutes ahead finds nobody dead: ages are differences of server times."""
    node = ClaimNode(partitions=1)
    node.now_ms += 10 * 60_000
    node.send(ev.Started())
    entry = OwnershipEntry(0, OTHER, 7, 77_000, "0-0")
    assert node.send(OwnershipListed(1, (entry,), 77_500)) == []


# -- claiming ----------------------------------------------------------------------------------


def test_a_claim_that_is_won_is_followed_by_the_lock_and_the_start() -> None:
    """Then processing starts; the lock is asked for with the ETag of the claim."""
    node = claiming()
    effects = node.claimed({0: 100})
    assert effects == [
        ev.PostControl(GroupChanged(100, "claim", "w1", (0,))),
        ev.AcquireLocks((0,), ME, 100, ()),
    ]
    (start,) = of_type(node.acquired(0), ev.StartRunner)
    assert isinstance(start, ev.StartRunner)
    assert (start.partition, start.owner) == (0, ME)


def test_a_steal_is_repeated_with_the_new_etag_while_the_old_owner_only_renewed() -> None:
    """The ETag loop: update the ETag to the latest, and go to (a)."""
    node = begun(4)
    (steal,) = node.listed(*(node.entry(p, OTHER, 7) for p in range(4)))
    assert steal == ClaimPartitions(ME, {0: 7})
    assert node.claimed({}, {0: node.entry(0, OTHER, 8)}) == [ClaimPartitions(ME, {0: 8})]
    effects = node.claimed({0: 9})
    assert ev.PostControl(GroupChanged(9, "steal", "w1", (0,))) in effects


@pytest.mark.parametrize(
    "partitions, age_ms, stands",
    [(4, 0, THIRD), (1, EXPIRY + 1, OTHER)],
    ids=["somebody beat us to a steal", "an owner that had expired is back"],
)
def test_a_claim_of_what_another_has_by_now_is_not_repeated(
    partitions: int, age_ms: int, stands: str
) -> None:
    """Then "some other instance beat this instance to it"; and the loop is for stealing from who lives."""
    node = begun(partitions)
    node.listed(*(node.entry(p, OTHER, 7, age_ms=age_ms) for p in range(partitions)))
    assert node.claimed({}, {0: node.entry(0, stands, 8)}) == []


def test_a_claim_whose_answer_was_lost_is_found_in_the_list() -> None:
    """The cycle begins anew after a pause, and the entry is there under our name."""
    node = claiming()
    assert node.send(UNANSWERED) == []
    assert node.wait(RETRY) == [ListOwnership()]
    effects = node.listed(node.entry(0, ME, 100))
    assert effects == [ev.AcquireLocks((0,), ME, 100, ())]
    assert node.core.owned == {0}


# -- renewing ----------------------------------------------------------------------------------


def test_an_update_whose_answer_was_lost_is_repeated_with_the_etag_that_stands() -> None:
    """The ETag loop of the checkpoints: the owner is still us, so the update goes on."""
    node = ClaimNode().owner_of_one()
    assert node.wait(CYCLE) == [UpdateCheckpoints(ME, {0: 100})]
    node.send(UNANSWERED)
    assert node.wait(RETRY) == [UpdateCheckpoints(ME, {0: 100})]
    assert node.renewed({}, {0: node.entry(0, ME, 105)}) == [UpdateCheckpoints(ME, {0: 105})]
    assert node.renewed({0: 106}) == [ListOwnership()]
    assert node.core.owned == {0}


def test_who_was_stolen_from_notices_on_its_next_cycle_drains_and_releases() -> None:
    """Its update fails, and the answer names who has the partition now."""
    node = ClaimNode().owner_of_one()
    node.wait(CYCLE)
    effects = node.renewed({}, {0: node.entry(0, OTHER, 200)})
    assert ev.Note("claim_lost", {"partition": 0, "to": OTHER}) in effects
    assert ev.DrainRunner(0, 3) in effects
    assert ev.ReleaseLocks(ME, {0: 3}) in node.send(ev.RunnerStopped(0, 3))
    effects = node.send(ev.LocksReleased(ME, (0,), frozenset({0})))
    (post,) = of_type(effects, ev.PostControl)
    assert isinstance(post, ev.PostControl)
    assert isinstance(post.message, PartitionsReleased)


def test_a_lock_that_knows_a_later_claim_refuses_until_the_store_says_it_is_ours() -> None:
    """Then the store went back in time (a failover); the next update brings an ETag that is later."""
    node = claiming()
    node.claimed({0: 100})
    assert node.send(ev.LocksAnswered(ME, (0,), {0: Stale(500)})) == [UpdateCheckpoints(ME, {0: 100})]
    node.renewed({0: 600})
    assert ev.AcquireLocks((0,), ME, 600, ()) in node.wait(RETRY)


def test_entries_that_the_store_lost_are_claimed_anew_all_at_once() -> None:
    """They are not new partitions. Nothing else is claimed while others do the same."""
    node = claiming(2)
    node.claimed({0: 100})
    node.acquired(0)
    node.wait(CYCLE)
    assert node.renewed({}, {0: None}) == [ListOwnership()]
    assert node.listed() == [ClaimPartitions(ME, {0: NO_ENTRY})]
    assert not of_type(node.claimed({0: 300}), ev.DrainRunner)
    node.wait(CYCLE)
    node.renewed({0: 301})
    assert node.listed(node.entry(0, ME, 301)) == []
    node.wait(CYCLE)
    node.renewed({0: 302})
    assert node.listed(node.entry(0, ME, 302)) == [ClaimPartitions(ME, {1: NO_ENTRY})]


def test_who_cannot_renew_starts_no_batch_from_one_cycle_before_the_expiry() -> None:
    """Counted from when the last good cycle began, by our own clock; until one gets through."""
    node = ClaimNode().owner_of_one()
    node.wait(CYCLE)
    node.renewed({0: 101})
    node.listed(node.entry(0, ME, 101), node.entry(1, OTHER), node.entry(2, OTHER), node.entry(3, THIRD))
    limit_ms = EXPIRY - CYCLE
    effects = node.wait(limit_ms - 1)
    assert effects == [UpdateCheckpoints(ME, {0: 101})]
    assert ev.PauseBatches() in node.wait(1)
    node.send(UNANSWERED)
    node.wait(RETRY)
    assert ev.ResumeBatches() in node.renewed({0: 102})


# -- leaving -----------------------------------------------------------------------------------


def test_who_stops_drains_releases_and_gives_up_its_entries_in_this_order() -> None:
    """Others can claim at once what is given up, and find its lock free."""
    node = ClaimNode().owner_of_one()
    assert ev.DrainRunner(0, 3) in node.send(ev.StopRequested())
    assert node.send(ev.RunnerStopped(0, 3)) == [ev.ReleaseLocks(ME, {0: 3})]
    effects = node.send(ev.LocksReleased(ME, (0,), frozenset({0})))
    assert effects[-1] == GiveUpPartitions(ME, (0,))
    assert node.send(PartitionsGivenUp((0,))) == [ev.Finished()]
    assert node.core.next_deadline_ms() is None
    assert node.send(UNANSWERED) == []


def test_who_stops_goes_on_renewing_while_it_drains() -> None:
    """A long batch must not lose its partition half-way."""
    node = ClaimNode().owner_of_one()
    node.send(ev.StopRequested())
    assert node.wait(CYCLE) == [UpdateCheckpoints(ME, {0: 100})]
    assert node.renewed({0: 101}) == []
    assert node.wait(CYCLE) == [UpdateCheckpoints(ME, {0: 101})]


def test_a_giving_up_without_an_answer_is_repeated() -> None:
    """Until it is heard that nothing is left."""
    node = claiming()
    node.send(ev.StopRequested())
    assert node.claimed({0: 100})[-1] == GiveUpPartitions(ME, (0,))
    assert node.send(UNANSWERED) == []
    assert node.wait(RETRY) == [GiveUpPartitions(ME, (0,))]


# -- the stream grows --------------------------------------------------------------------------


def test_a_partition_that_the_group_no_longer_works_on_is_drained_and_given_up() -> None:
    """And counts for nobody: what the worker may claim then is its share of the others."""
    node = ClaimNode().owner_of_one()
    assert ev.DrainRunner(0, 3) in node.send(ev.PartitionsSeen(1, 5))
    assert UpdateCheckpoints(ME, {0: 100}) in node.wait(CYCLE)
    node.renewed({0: 101})
    others = [node.entry(p, OTHER) for p in (1, 2, 3)]
    assert node.listed(node.entry(0, ME, 101), *others) == [ClaimPartitions(ME, {4: NO_ENTRY})]
    node.claimed({4: 102})
    node.send(ev.RunnerStopped(0, 3))
    assert node.send(ev.LocksReleased(ME, (0,), frozenset({0})))[-1] == GiveUpPartitions(ME, (0,))
    node.send(PartitionsGivenUp((0,)))
    assert node.core.owned == {4}


def test_a_partition_that_is_taken_up_again_while_it_is_given_up_is_claimed_anew() -> None:
    """A failover has lost that it was done; its entry is gone by then, or has another owner."""
    node = ClaimNode().owner_of_one()
    node.send(ev.PartitionsSeen(1, 4))
    node.send(ev.RunnerStopped(0, 3))
    assert node.send(ev.LocksReleased(ME, (0,), frozenset({0})))[-1] == GiveUpPartitions(ME, (0,))
    node.send(ev.PartitionsSeen(0, 4))
    node.acquired(0, epoch=4)
    effects = node.send(PartitionsGivenUp((0,)))
    assert ev.DrainRunner(0, 4) in effects
    node.wait(CYCLE)
    others = [node.entry(p, OTHER) for p in (1, 2, 3)]
    assert node.listed(*others) == [ClaimPartitions(ME, {0: NO_ENTRY})]


# -- how it is made ----------------------------------------------------------------------------


def test_the_expiry_is_at_least_two_cycles() -> None:
    """One may fail; the message names the numbers."""
    assert Claim(cycle_ms=500, expiry_ms=1_000).pause_after_ms == 500
    message = r"claim_expiry_ms is 999, and must be >= 2 x claim_cycle_ms \(500\)"
    with pytest.raises(ConfigurationError, match=message):
        Claim(cycle_ms=500, expiry_ms=999)
    with pytest.raises(ConfigurationError, match="cycle_ms is 0"):
        Claim(cycle_ms=0)


def test_a_call_that_fails_leaves_time_for_two_more_before_the_expiry() -> None:
    """The rule names a setting of the protocol and one of all; it binds no app with another protocol."""
    with pytest.raises(ConfigurationError, match=r"claim_expiry_ms is 7000, .* 3 x call_timeout_ms"):
        Settings(coordination=Claim(expiry_ms=7_000))
    Settings(call_timeout_ms=3_400, session_timeout_ms=11_000)
