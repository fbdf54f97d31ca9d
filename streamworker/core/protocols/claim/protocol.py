"""The claim protocol: a store of ownership entries, and one new claim per cycle.

Theory of operation
-------------------
No other node tells a worker what it should own. Once per cycle the worker renews its entries, reads all
entries, and claims at most one more partition: one without an owner, or else one of the worker that owns most
(``choice``). An entry that was not renewed for the expiry time has no owner, so the partitions of a
dead worker are claimed one by one.

At most one call to the store is under way, and a cycle is a chain of calls::

    renew -> list -> claim -> rest
      ^                         |
      +-------------------------+

If an answer never comes, the cycle begins again: the list shows what the store did.

The algorithm has no locks. In this implementation a worker that claimed a partition then acquires the
partition's lock (``ownership``), and waits for the former owner to release it. The former owner notices the
loss on its next cycle, or by a commit that is refused; it finishes the batch in hand and releases the lock. A
worker does not wait for an expired owner. So two workers handle one partition at a time only if one of them
was thought dead, and the lock's epoch refuses what that one still commits.

All times that are compared come from the server, which dates the entries and sends its time with each list.
So the clock skew that a section of the document discusses does not arise.
"""

from dataclasses import dataclass
from enum import Enum

from streamworker.core import events as ev
from streamworker.core.control import GroupChanged
from streamworker.core.ownership.lifecycle import State
from streamworker.core.ownership.locks import Stale
from streamworker.core.ownership.partitions import Ownership
from streamworker.core.ownership.pulse import Pulse
from streamworker.core.protocols.claim import events as calls
from streamworker.core.protocols.claim.choice import choose
from streamworker.core.protocols.claim.settings import Claim
from streamworker.core.protocols.setup import Phase, Setup

SPREAD = 10
"""Cycles are longer by up to a tenth, so that workers that started together drift apart."""


class _Step(Enum):
    """The next call of the cycle."""

    RENEW = "renew"
    LIST = "list"
    CLAIM = "claim"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A claim that this worker makes, or repeats."""

    etag: int
    old_owner: str
    """Who owned the partition when the worker chose it: it repeats a refused claim while the owner is the
    same."""


class ClaimCore:
    """The claim protocol for one worker in one group."""

    def __init__(self, setup: Setup) -> None:
        assert isinstance(setup.coordination, Claim)
        self._setup, self._timing = setup, setup.coordination
        self.owner = setup.new_owner()
        self._active = range(setup.first, setup.partitions)
        """The partitions that the group works on, as this worker has seen."""
        self._ownership = Ownership(self.owner, setup.timing.grace_period_ms, setup.retry_ms)
        self._pulse = Pulse(self.owner, self._timing.pause_after_ms)
        self._phase = Phase.NEW
        self._claims: dict[int, int] = {}
        """The partitions that this worker owns in the store, and the ETag of each entry."""
        self._generations: dict[int, int] = {}
        """The ETags of this worker's claims: it asks for the locks with them."""
        self._stale: set[int] = set()
        self._seen: dict[str, int] = {}
        """When each other owner last changed an entry, by the server's clock."""
        self._server_ahead_ms = 0
        self._step = _Step.RENEW
        self._calling = False
        self._hurry = False
        """Another worker seems to own a partition of this one: the next cycle begins at once."""
        self._due_ms = self._pause_until_ms = self._cycle_ms = 0
        """When the next cycle begins, the time before which no call is made, and when the last cycle
        began."""
        self._restrained_until_ms = 0
        """No new partition is claimed before this time."""
        self._renew: dict[int, int] = {}
        self._wanted: dict[int, _Wanted] = {}

    @property
    def owned(self) -> frozenset[int]:
        """Return the partitions whose entries belong to this worker."""
        return frozenset(self._claims)

    @property
    def held(self) -> list[int]:
        """Return the partitions whose lock this worker holds and does not give back."""
        return self._ownership.held

    def handle(self, event: ev.Event, now_ms: int) -> list[ev.Effect]:
        """Handle one event; return the effects to execute, in this order."""
        if self._phase is Phase.GONE:
            return []
        effects = self._dispatch(event, now_ms)
        effects += self._pulse.check(now_ms)
        effects += self._ownership.advance(now_ms, self._live(now_ms))
        self._hurry |= self._ownership.looks_stale()
        return effects + self._converse(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when to deliver ``DeadlinePassed`` if no other event comes before."""
        if self._phase in (Phase.NEW, Phase.GONE):
            return None
        times = [self._ownership.next_deadline_ms(), self._pulse.next_deadline_ms()]
        if not self._calling:
            times.append(max(self._due_ms, self._pause_until_ms))
        return min((at for at in times if at is not None), default=None)

    def _dispatch(self, event: ev.Event, now_ms: int) -> list[ev.Effect]:
        match event:
            case ev.Started() if self._phase is Phase.NEW:
                self._phase = Phase.ACTIVE
                self._due_ms = now_ms
                self._pulse.start(now_ms)
            case ev.StopRequested():
                self._phase = Phase.LEAVING
                return self._assign(now_ms)
            case calls.CheckpointsUpdated():
                return self._updated(event, now_ms)
            case calls.OwnershipListed():
                return self._listed(event, now_ms)
            case calls.PartitionsClaimed():
                return self._claimed(event, now_ms)
            case calls.PartitionsGivenUp(partitions):
                self._calling = False
                for partition in partitions:
                    self._claims.pop(partition, None)
                    self._renew.pop(partition, None)
                return self._assign(now_ms)
            case ev.PartitionsSeen(first, total):
                self._active = range(first, max(total, self._active.stop))
                return self._assign(now_ms)
            case ev.Unanswered(calls.StoreCall()):
                self._calling = False
                self._rest(now_ms)
                self._due_ms = now_ms
                self._pause_until_ms = now_ms + self._setup.retry_ms()
            case _:
                if isinstance(event, ev.LocksAnswered):
                    self._stale.update(p for p, reply in event.replies.items() if isinstance(reply, Stale))
                return self._ownership.handle(event, now_ms)
        return []

    # -- the cycle -----------------------------------------------------------------------------

    def _converse(self, now_ms: int) -> list[ev.Effect]:
        """Start the next call to the store, if one is due and none is under way."""
        if self._calling or self._phase is Phase.NEW or now_ms < self._pause_until_ms:
            return []
        kept = self._desired()
        idle = (p for p in sorted(self._claims) if self._ownership.state(p) is State.IDLE)
        if done := tuple(p for p in idle if p not in kept):
            self._calling = True
            return [calls.GiveUpPartitions(self.owner, done)]
        if self._phase is Phase.LEAVING:
            if self._ownership.is_idle:
                self._phase = Phase.GONE
                return [ev.Finished()]
            if self._step is not _Step.RENEW:
                self._rest(now_ms)
        if self._step is _Step.RENEW and self._hurry:
            self._hurry, self._due_ms = False, now_ms
        if now_ms < self._due_ms:
            return []
        effect = self._next_call(now_ms)
        self._calling = True
        return [effect]

    def _next_call(self, now_ms: int) -> ev.Effect:
        if self._step is _Step.RENEW:
            if not self._renew:
                self._cycle_ms, self._renew = now_ms, dict(self._claims)
            if self._renew:
                return calls.UpdateCheckpoints(self.owner, dict(self._renew))
        if self._step is _Step.CLAIM:
            return calls.ClaimPartitions(self.owner, {p: wanted.etag for p, wanted in self._wanted.items()})
        return calls.ListOwnership()

    def _rest(self, now_ms: int) -> None:
        """End the cycle."""
        self._step, self._renew, self._wanted = _Step.RENEW, {}, {}
        cycle_ms = self._timing.cycle_ms
        self._due_ms = max(now_ms, self._cycle_ms + cycle_ms + self._setup.jitter(cycle_ms // SPREAD))

    def _updated(self, event: calls.CheckpointsUpdated, now_ms: int) -> list[ev.Effect]:
        """Take the new ETags; repeat the call with the current ETags if an earlier answer was lost."""
        self._calling = False
        for partition, etag in event.done.items():
            self._claims[partition] = etag
            if partition in self._stale:
                # Some lock is ahead of the store, which went back in time; this worker still owns the entry.
                self._stale.discard(partition)
                self._generations[partition] = etag
        self._renew = {}
        effects: list[ev.Effect] = []
        for partition, entry in event.refused.items():
            if entry is None:
                continue  # the store lost it; the list will show that, and this worker claims it again
            if entry.owner == self.owner:
                self._renew[partition] = entry.etag
            else:
                effects += self._lose(partition, entry.owner)
        if not self._renew:
            effects += self._pulse.renewed(self._cycle_ms, now_ms)
            self._step = _Step.LIST
        return effects + self._assign(now_ms)

    def _listed(self, event: calls.OwnershipListed, now_ms: int) -> list[ev.Effect]:
        """Read who owns what, and choose what to claim."""
        self._calling = False
        self._server_ahead_ms = event.server_ms - now_ms
        oldest_ms = event.server_ms - self._timing.expiry_ms
        entries = {entry.partition: entry for entry in event.entries}
        effects = self._pulse.renewed(self._cycle_ms, now_ms)
        if event.partitions > self._active.stop:
            effects.append(ev.LookAtPartitions())
        for partition, entry in entries.items():
            if entry.owner == self.owner:
                self._take(partition, entry.etag)
                continue
            self._seen[entry.owner] = max(entry.modified_ms, self._seen.get(entry.owner, 0))
            if partition in self._claims:
                effects += self._lose(partition, entry.owner)
        self._seen = {owner: ms for owner, ms in self._seen.items() if ms >= oldest_ms}
        for partition in self._claims.keys() - entries.keys():
            # The store lost data. Other workers' partitions look unclaimed until those have renewed them,
            # too.
            self._wanted[partition] = _Wanted(calls.NO_ENTRY, "")
            self._restrained_until_ms = now_ms + 2 * self._timing.cycle_ms
        owners = {p: entry.owner for p, entry in entries.items() if entry.modified_ms >= oldest_ms}
        owners |= dict.fromkeys(self._claims, self.owner)
        choice = choose(self._active, owners, self.owner, self._setup.jitter)
        if choice is not None and now_ms >= self._restrained_until_ms:
            known = entries.get(choice.partition)
            etag = calls.NO_ENTRY if known is None else known.etag
            self._wanted[choice.partition] = _Wanted(etag, choice.victim)
        self._step = _Step.CLAIM
        if not self._wanted:
            self._rest(now_ms)
        return effects + self._assign(now_ms)

    def _claimed(self, event: calls.PartitionsClaimed, now_ms: int) -> list[ev.Effect]:
        """Take the partitions that were won; repeat claims that failed only because the old owner renewed."""
        self._calling = False
        wanted, self._wanted = self._wanted, {}
        effects: list[ev.Effect] = []
        for partition, etag in event.done.items():
            cause = "steal" if wanted[partition].old_owner else "claim"
            effects.append(ev.PostControl(GroupChanged(etag, cause, self._setup.identity.name, (partition,))))
            self._claims.pop(partition, None)
            self._take(partition, etag)
        for partition, entry in event.refused.items():
            if entry is None:
                continue  # given up meanwhile: the next cycle sees it
            if entry.owner == self.owner:
                self._take(partition, entry.etag)
            elif partition in self._claims:
                effects += self._lose(partition, entry.owner)
            elif entry.owner == wanted[partition].old_owner:
                self._wanted[partition] = _Wanted(entry.etag, entry.owner)
        if not self._wanted:
            self._rest(now_ms)
        return effects + self._assign(now_ms)

    # -- the worker's claims -------------------------------------------------------------------

    def _take(self, partition: int, etag: int) -> None:
        if partition not in self._claims:
            self._generations[partition] = etag
        self._claims[partition] = etag

    def _lose(self, partition: int, winner: str) -> list[ev.Effect]:
        del self._claims[partition]
        return [ev.Note("claim_lost", {"partition": partition, "to": winner})]

    def _assign(self, now_ms: int) -> list[ev.Effect]:
        return self._ownership.assign(self._desired(), max(self._claims.values(), default=0), now_ms)

    def _desired(self) -> dict[int, int]:
        """Return the partitions that this worker owns and that its group works on, with their generations."""
        if self._phase is not Phase.ACTIVE:
            return {}
        return {p: self._generations[p] for p in self._claims if p in self._active}

    def _live(self, now_ms: int) -> tuple[str, ...]:
        """Return the other owners with recent changes: one without entries now may still be draining."""
        oldest_ms = now_ms + self._server_ahead_ms - self._timing.expiry_ms
        return tuple(owner for owner, ms in sorted(self._seen.items()) if ms >= oldest_ms)
