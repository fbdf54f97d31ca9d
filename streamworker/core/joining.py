"""Many that join at once are let in together.

A join is a change of the document, made by who joins. Where fifty do that in one moment, one of them
is first, and each further one would have to try again: fifty versions, each read by everybody, each with
other owners. So whoever was not first says on the control stream that it wants to join, and waits. The
first member in join order gathers those for a moment and lets all of them in by one change.

That is only a faster way: who is not let in in time joins by itself as before. And it is as safe, since
the document is still changed by compare-and-set, and says who is in.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from streamworker.core.assignment import STRATEGIES
from streamworker.core.control import JoinWanted
from streamworker.core.membership import RANKS_MAX, Member, Membership, member_fields, read_member

GATHER_MS = 40
"""A member gathers until nobody new was heard of for so long. Some round trips: who starts together is
mostly there by then. Nobody waits longer for it than for the batches in hand, which the handover waits
for anyway."""
GATHER_MAX_MS = 160
"""And no longer than this: many that start on a few cores come one after another."""
PATIENCE_MS = 1_000
"""So long who wants in waits before it joins by itself, and up to as much more; and who asked and was
then told to stop, before it is gone: nobody lets it in after that. As long as a heartbeat."""


@dataclass(frozen=True, slots=True)
class Applicant:
    """Who wants to join."""

    member: Member
    strategy: str
    former: tuple[str, ...]
    """Its ids from before it was removed, which it will not use any more."""

    def message(self) -> JoinWanted:
        """Return what is posted."""
        fields = {**member_fields(self.member), "strategy": self.strategy, "former": self.former}
        return JoinWanted(self.member.name, json.dumps(fields, separators=(",", ":")))

    @classmethod
    def read(cls, message: JoinWanted) -> "Applicant | None":
        """Read a message; None where it cannot be, or names an assignment that this release does not know."""
        try:
            fields = json.loads(message.applicant)
            former = tuple(str(each) for each in fields["former"])
            applicant = cls(read_member(fields), str(fields["strategy"]), former)
        except (ValueError, OverflowError, LookupError, TypeError, RecursionError):
            return None
        return applicant if applicant.strategy in STRATEGIES else None


class Door:
    """One worker's part in letting others in, and in being let in.

    Parameters
    ----------
    pace_ms
        By how much each later member waits longer than the one before it in join order.
    jitter
        Returns a number from 0 up to its argument.
    """

    def __init__(self, pace_ms: int, jitter: Callable[[int], int]) -> None:
        self._pace_ms = pace_ms
        self._jitter = jitter
        self._waiting: dict[str, Applicant] = {}
        self._since_ms: int | None = None
        self._last_ms = 0
        """When somebody was heard of last who was not known to wait."""
        self._rank = 0
        self._patient_until_ms: int | None = None

    # -- who wants in --------------------------------------------------------------------------

    def knock(self, applicant: Applicant, now_ms: int) -> JoinWanted:
        """Ask to be let in, and be patient from now on."""
        self._patient_until_ms = now_ms + PATIENCE_MS + self._jitter(PATIENCE_MS)
        return applicant.message()

    def is_patient(self, now_ms: int) -> bool:
        """Whether we still wait to be let in."""
        return self._patient_until_ms is not None and now_ms < self._patient_until_ms

    # -- who is in -----------------------------------------------------------------------------

    def heard(self, message: JoinWanted, now_ms: int) -> None:
        """Somebody wants in."""
        applicant = Applicant.read(message)
        if applicant is None or applicant.member.static_id:
            return
        if not self._waiting:
            self._since_ms = now_ms
        if applicant.member.id not in self._waiting:
            self._last_ms = now_ms
        self._waiting[applicant.member.id] = applicant

    def look(self, now: Membership, me: str) -> None:
        """Take note of a document: who is in does not wait any more."""
        for member_id in self._waiting.keys() & set(now.ids):
            del self._waiting[member_id]
        if me in now.ids:
            self._patient_until_ms = None
        active = now.active_ids
        self._rank = min(active.index(me), RANKS_MAX) if me in active else RANKS_MAX

    @property
    def others_wait(self) -> bool:
        """Whether somebody has asked to be let in."""
        return bool(self._waiting)

    def let_in(self, now: Membership, now_ms: int, server_ms: int) -> tuple[str, str, Membership] | None:
        """Return the change that lets all in who wait, once it is our turn; None before."""
        due_ms = self._due_ms
        if due_ms is None or now_ms < due_ms:
            return None
        # Who slept hears of wishes that are long over.
        oldest_ms, since_ms = server_ms - 2 * PATIENCE_MS, self._since_ms
        waiting = [each for each in self._waiting.values() if each.member.joined_ms >= oldest_ms]
        self._waiting, self._since_ms = {}, None
        if not waiting or since_ms is None or now_ms >= since_ms + PATIENCE_MS:
            return None  # They have helped themselves by now, or gave it up: nobody is brought back.
        return (
            "join",
            " ".join(each.member.name for each in waiting),
            now.with_members(
                [each.member for each in waiting],
                server_ms,
                {former for each in waiting for former in each.former},
                waiting[-1].strategy,
            ),
        )

    @property
    def _due_ms(self) -> int | None:
        if not self._waiting or self._since_ms is None:
            return None
        gathered_ms = min(self._last_ms + GATHER_MS, self._since_ms + GATHER_MAX_MS)
        return gathered_ms + self._rank * self._pace_ms

    def next_deadline_ms(self, *, is_in: bool) -> int | None:
        """Return when there is something to do, if nothing else happens before."""
        return self._due_ms if is_in else self._patient_until_ms
