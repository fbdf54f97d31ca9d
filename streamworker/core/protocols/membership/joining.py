"""Adds workers that join at the same time in one change of the document.

A worker joins by changing the document. If fifty workers do so at the same moment, one of them is first, and
each of the others has to try again: fifty versions, each read by every member, each with other owners. So a
worker whose change was not first posts on the control stream that it wants to join, and waits. The first
member in join order gathers these requests for a moment and adds all of the workers in one change.

This is only an optimization: a worker that is not added in time joins on its own as before. It is equally
safe, since the document is still changed by compare-and-set, and says who is a member.
"""

from collections.abc import Callable
from typing import ClassVar

import msgspec

from streamworker.core.control import ControlMessage
from streamworker.core.protocols.membership.assignment import STRATEGIES
from streamworker.core.protocols.membership.document import RANKS_MAX, Change, Member, Membership

GATHER_MS = 40
"""A member gathers requests until it has heard of no new worker for this long. The value is some round trips:
workers that start together have mostly arrived by then. The wait delays nobody longer than the batches in
hand do, which the handover waits for anyway."""
GATHER_MAX_MS = 160
"""A member gathers no longer than this: many workers that start on a few cores arrive one after another."""
PATIENCE_MS = 1_000
"""A worker that asked to be added waits this long, and up to twice this long by jitter, before it joins on
its own. A worker that asked and was then told to stop waits as long before it finishes, because no member
adds it after that. The value is one heartbeat interval."""


class JoinWanted(ControlMessage):
    """A worker asks the members to add it to the group."""

    kind: ClassVar[str] = "wanted"
    name: str
    """The worker's name."""
    applicant: str
    """The worker's ``Applicant``, as JSON."""
    generation: int = 0
    """No generation announces it, and each entry of the stream names one."""

    def __str__(self) -> str:
        return f"{self.name} wants to join"


class Applicant(Member, frozen=True, omit_defaults=True, kw_only=True):
    """A worker that wants to join: what the document will say of it, its assignment and its past."""

    strategy: str
    former: tuple[str, ...]
    """The worker's earlier member ids, which the group removed and which it will not use again."""

    @property
    def member(self) -> Member:
        """What the document will say of it."""
        return Member(**{name: getattr(self, name) for name in Member.__struct_fields__})

    def message(self) -> JoinWanted:
        """Return the message to post."""
        return JoinWanted(self.name, msgspec.json.encode(self).decode())

    @classmethod
    def read(cls, message: JoinWanted) -> "Applicant | None":
        """Read a message; return None if it is malformed or names an assignment unknown to this release."""
        try:
            applicant = msgspec.json.decode(message.applicant, type=cls)
        except (ValueError, RecursionError):
            return None
        return applicant if applicant.strategy in STRATEGIES else None


class Door:
    """One worker's part in adding others to the group, and in being added.

    Each member waits ``pace_ms`` longer than the one before it in join order.
    """

    def __init__(self, pace_ms: int, jitter: Callable[[int], int]) -> None:
        self._pace_ms = pace_ms
        self._jitter = jitter
        self._waiting: dict[str, Applicant] = {}
        self._since_ms: int | None = None
        self._last_ms = 0
        """When the last request of a worker that was not waiting before arrived."""
        self._rank = 0
        self._patient_until_ms: int | None = None

    # -- being added ---------------------------------------------------------------------------

    def knock(self, applicant: Applicant, now_ms: int) -> JoinWanted:
        """Return the request to be added, and wait for an answer from now on."""
        self._patient_until_ms = now_ms + PATIENCE_MS + self._jitter(PATIENCE_MS)
        return applicant.message()

    def is_patient(self, now_ms: int) -> bool:
        """Whether this worker still waits to be added."""
        return self._patient_until_ms is not None and now_ms < self._patient_until_ms

    # -- adding others -------------------------------------------------------------------------

    def heard(self, message: JoinWanted, now_ms: int) -> None:
        """Note that a worker wants to join."""
        applicant = Applicant.read(message)
        if applicant is None or applicant.static_id:
            return
        if not self._waiting:
            self._since_ms = now_ms
        if applicant.id not in self._waiting:
            self._last_ms = now_ms
        self._waiting[applicant.id] = applicant

    def look(self, now: Membership, me: str) -> None:
        """Take a new version of the document; its members no longer wait."""
        for member_id in self._waiting.keys() & set(now.ids):
            del self._waiting[member_id]
        if me in now.ids:
            self._patient_until_ms = None
        active = now.active_ids
        self._rank = min(active.index(me), RANKS_MAX) if me in active else RANKS_MAX

    @property
    def others_wait(self) -> bool:
        """Whether a worker has asked to be added."""
        return bool(self._waiting)

    def let_in(self, now: Membership, now_ms: int, server_ms: int) -> Change | None:
        """Return the change that adds all waiting workers, once this member's turn has come; None before."""
        due_ms = self._due_ms
        if due_ms is None or now_ms < due_ms:
            return None
        # A member that was suspended may read requests that are long outdated.
        oldest_ms, since_ms = server_ms - 2 * PATIENCE_MS, self._since_ms
        waiting = [each for each in self._waiting.values() if each.joined_ms >= oldest_ms]
        self._waiting, self._since_ms = {}, None
        if not waiting or since_ms is None or now_ms >= since_ms + PATIENCE_MS:
            return None  # They have joined on their own by now, or given up: do not add them again.
        former = {former for each in waiting for former in each.former}
        members = [each.member for each in waiting]
        after = now.with_members(members, server_ms, former, waiting[-1].strategy)
        return Change("join", " ".join(each.name for each in waiting), after)

    @property
    def _due_ms(self) -> int | None:
        if not self._waiting or self._since_ms is None:
            return None
        gathered_ms = min(self._last_ms + GATHER_MS, self._since_ms + GATHER_MAX_MS)
        return gathered_ms + self._rank * self._pace_ms

    def next_deadline_ms(self, *, is_in: bool) -> int | None:
        """Return when there is something to do, if no other event comes before."""
        return self._due_ms if is_in else self._patient_until_ms
