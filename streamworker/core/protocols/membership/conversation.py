"""The calls between a worker and the server about the membership document.

At most one call is under way. Each time a worker has read the document, it derives from the document which
change it wants. So a conflict needs no special case: the refusal brings the current document. A lost answer
needs none either: nobody knows whether the change was made, and reading the document tells.
"""

from dataclasses import replace

from streamworker.core.control import GroupChanged
from streamworker.core.events import Effect, Note
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.membership.document import Change, Membership
from streamworker.core.protocols.membership.mending import Damage, fingerprint, is_of_later_release
from streamworker.core.protocols.setup import Setup
from streamworker.errors import CoordinationError, InternalError

CONFLICT_PAUSE_MS = 20
"""Longest pause after the first lost compare-and-set; it doubles with each further one. A change is one round
trip (about 1 ms), so 20 ms are enough for the first tries of some ten members."""
CONFLICT_PAUSE_MAX_MS = 1_000
"""Spreads the tries of hundreds of members over a second, which is one heartbeat."""


class Conversation:
    """The calls about one group's document."""

    def __init__(self, setup: Setup) -> None:
        self.membership = Membership.empty(setup.partitions, setup.assignment, setup.first)
        """The newest version that this worker knows."""
        self.server_ms = 0
        """The server's clock in its last answer."""
        self.must_read = False
        """Whether the worker should read the document."""
        self._retry_ms = setup.timing.acquire_retry_ms
        self._interval_ms = setup.timing.heartbeat_interval_ms
        self._jitter = setup.jitter
        self._damage = Damage(self._interval_ms, setup.jitter)
        self._stored: bytes | None = None
        """The bytes of the newest version; None if this worker wrote it, and can build the bytes again."""
        self._is_calling = False
        self._proposed: Membership | None = None
        self._pause_until_ms: int | None = None
        self._conflicts = 0

    def may_call(self, now_ms: int) -> bool:
        """Whether no call is under way and no pause lasts."""
        return not self._is_calling and (self._pause_until_ms is None or now_ms >= self._pause_until_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when the pause ends; None while a call is under way."""
        return None if self._is_calling else self._pause_until_ms

    def earliest_ms(self, at_ms: int | None) -> int | None:
        """Return the earliest time for a call that is due at ``at_ms``; None while a call is under way."""
        return None if self._is_calling or at_ms is None else max(at_ms, self._pause_until_ms or 0)

    # -- calls ---------------------------------------------------------------------------------

    def read(self, me: str, now_ms: int, at_least: int) -> list[Effect]:
        """Read the document, or repair it once the repair is due."""
        self._pause_until_ms, self.must_read, self._is_calling = None, False, True
        if not self._damage.is_due(now_ms):
            return [calls.ReadDocument()]
        known, seen = self.membership, self._damage.seen
        self._damage.try_later(now_ms)
        self._proposed = known if known.generation else None
        message = GroupChanged(0, "repaired", me.rpartition(".")[0], ())
        return [calls.MendDocument(seen, known, message, max(at_least, known.generation + 1))]

    def propose(self, change: Change, at_least: int = 0) -> list[Effect]:
        """Propose a change of the newest version that this worker knows, at this generation ``at_least``."""
        now, after = self.membership, change.after
        self._pause_until_ms, self._proposed, self._is_calling = None, after, True
        message = GroupChanged(0, change.cause, change.member, now.moved(after))
        added = tuple(each for each in after.present_ids if each not in now.present_ids)
        removed = tuple(each for each in now.present_ids if each not in after.present_ids)
        return [calls.ChangeDocument(now.generation, after, message, added, removed, at_least)]

    def rest(self) -> list[Effect]:
        """Make no call: the document is as this worker wants it."""
        self._pause_until_ms, self._conflicts = None, 0
        return []

    # -- answers -------------------------------------------------------------------------------

    def answered(
        self, event: calls.DocumentRead | calls.ChangeRefused, me: str, now_ms: int
    ) -> Membership | Note:
        """Handle a document; return the version to act on, or a note about what is wrong with it.

        Members repair a damaged document before other workers do, so it matters who ``me`` is.
        """
        self._is_calling, self.server_ms = False, event.server_ms
        if isinstance(event, calls.ChangeRefused):
            self._pause_after_conflict(now_ms)
        ours, document = self.membership, event.document
        if document is None and not event.foreign:
            self._damage.forget()
            self.membership = Membership.empty(ours.partitions, ours.strategy, ours.first)
            self._stored = None
            return self.membership
        try:
            read = self._parse(document, event.foreign)
        except CoordinationError as error:
            # The worker keeps its partitions: the locks say whether it owns them, not the document.
            self.must_read = True
            if document is not None and is_of_later_release(document):
                self._damage.forget()
                self._pause_until_ms = now_ms + self._interval_ms
            else:
                seen = event.foreign if document is None else fingerprint(document)
                self._pause_until_ms = self._damage.look(seen, ours.present(me) is not None, now_ms)
            return Note("membership_unreadable", {"reason": str(error)})
        self._damage.forget()
        self.membership, self._stored = read, document
        return read

    def _parse(self, document: bytes | None, foreign: str) -> Membership:
        if document is None:
            raise CoordinationError(f"There is a {foreign} in place of the membership document.")
        read, ours = Membership.parse(document), self.membership
        if read.generation == ours.generation and read != ours:
            # Each change has a generation of its own: something overwrote the version that this worker knows.
            raise CoordinationError(
                f"The membership document is not the one that was written with generation {read.generation}."
            )
        return read

    def differs(self, event: calls.HeartbeatDone) -> bool:
        """Whether a heartbeat found a document other than the one that this worker knows."""
        if event.generation != self.membership.generation:
            return True
        if not event.fingerprint or not event.generation:
            return False
        if self._stored is None:
            self._stored = self.membership.document()
        return event.fingerprint != fingerprint(self._stored)

    def heard(self, generation: int) -> None:
        """Note that a version with this generation exists."""
        if generation > self.membership.generation:
            self.must_read = True
            if self._damage.seen:
                self._pause_until_ms = None

    def changed(self, event: calls.DocumentChanged) -> Membership:
        """Handle the answer that the change was made; return the version to act on."""
        if self._proposed is None:
            raise InternalError("A membership change was answered that was not asked for.")
        self.membership = replace(self._proposed, generation=event.generation)
        self._is_calling, self._proposed, self._conflicts, self._stored = False, None, 0, None
        self._damage.forget()
        return self.membership

    def failed(self, now_ms: int) -> None:
        """Pause, then read the document: a call got no answer, and may or may not have been executed."""
        self._is_calling, self._proposed, self.must_read = False, None, True
        self._pause_until_ms = now_ms + self._retry_ms + self._jitter(100)

    def _pause_after_conflict(self, now_ms: int) -> None:
        self._proposed = None
        longest_ms = min(CONFLICT_PAUSE_MS * 2**self._conflicts, CONFLICT_PAUSE_MAX_MS)
        self._conflicts += 1
        self._pause_until_ms = now_ms + self._jitter(longest_ms)
