"""What a worker and the server say to each other about the membership document.

At most one call is under way. What a worker wants of the document it derives anew from what that
says each time it was read. So a conflict needs no special case: the refusal brings the document.
Neither does a lost answer: nobody knows whether the change was done, and reading tells.
"""

from collections.abc import Callable
from dataclasses import replace

from streamworker.core.control import GroupChanged
from streamworker.core.events import (
    ChangeDocument,
    ChangeRefused,
    DocumentChanged,
    DocumentRead,
    Effect,
    HeartbeatDone,
    MendDocument,
    Note,
    ReadDocument,
)
from streamworker.core.membership import Membership
from streamworker.core.mending import Damage, fingerprint, is_of_later_release
from streamworker.errors import ConfigurationError, CoordinationError, InternalError

CONFLICT_PAUSE_MS = 20
"""Longest pause after the first lost compare-and-set; doubled with each further one. A change is
one round trip (about 1 ms), so that 20 ms hold the first tries of some ten members."""
CONFLICT_PAUSE_MAX_MS = 1_000
"""A herd of hundreds is spread over a second, which is one heartbeat."""


class Conversation:
    """The calls about one group's document.

    Parameters
    ----------
    membership
        The group as it is known at first.
    retry_ms
        Pause after a call without an answer.
    interval_ms
        Pace of the heartbeats, and of looking again at a document of a later release.
    jitter
        Returns a number from 0 up to its argument.
    """

    def __init__(
        self, membership: Membership, *, retry_ms: int, interval_ms: int, jitter: Callable[[int], int]
    ) -> None:
        self.membership = membership
        """The newest version that we know."""
        self.server_ms = 0
        """The server's clock when it last told us."""
        self.must_read = False
        """Whether there is something to learn by reading."""
        self._retry_ms = retry_ms
        self._interval_ms = interval_ms
        self._damage = Damage(interval_ms, jitter)
        self._stored: bytes | None = None
        """The newest version as it was read; None for one that we wrote, which can be made again."""
        self._jitter = jitter
        self._is_calling = False
        self._proposed: Membership | None = None
        self._pause_until_ms: int | None = None
        self._conflicts = 0

    def may_call(self, now_ms: int) -> bool:
        """Whether no call is under way, and no pause."""
        return not self._is_calling and (self._pause_until_ms is None or now_ms >= self._pause_until_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when the pause ends, if that is what we wait for."""
        return None if self._is_calling else self._pause_until_ms

    def earliest_ms(self, at_ms: int | None) -> int | None:
        """Return when something that is due at a time can be said; None while a call is under way."""
        return None if self._is_calling or at_ms is None else max(at_ms, self._pause_until_ms or 0)

    # -- our side ------------------------------------------------------------------------------

    def read(self, me: str, now_ms: int, at_least: int) -> list[Effect]:
        """Ask for the document; or for it to be put right, once that is due."""
        self._pause_until_ms, self.must_read, self._is_calling = None, False, True
        if not self._damage.is_due(now_ms):
            return [ReadDocument()]
        known, seen = self.membership, self._damage.seen
        self._damage.failed()  # as long as there is no answer
        self._proposed = known if known.generation else None
        message = GroupChanged(0, "mended", me.rpartition(".")[0], ())
        return [MendDocument(seen, known, message, max(at_least, known.generation + 1))]

    def propose(self, cause: str, member: str, after: Membership, at_least: int = 0) -> list[Effect]:
        """Ask for a change of the newest version that we know.

        Parameters
        ----------
        cause, member
            Why, and whom it is about, for people.
        after
            What the document should say.
        at_least
            The generation that it gets at least.
        """
        now = self.membership
        self._pause_until_ms, self._proposed, self._is_calling = None, after, True
        message = GroupChanged(0, cause, member, now.moved(after))
        added = tuple(each for each in after.present_ids if each not in now.present_ids)
        removed = tuple(each for each in now.present_ids if each not in after.present_ids)
        return [ChangeDocument(now.generation, after, message, added, removed, at_least)]

    def rest(self) -> list[Effect]:
        """Ask for nothing: the document is as we want it."""
        self._pause_until_ms, self._conflicts = None, 0
        return []

    # -- the server's side ---------------------------------------------------------------------

    def answered(self, event: DocumentRead | ChangeRefused, me: str, now_ms: int) -> Membership | Note:
        """Take a document; return the version to act on, or what is wrong with it.

        Parameters
        ----------
        event
            With the document.
        me
            Our id: members put right what is damaged before others do.
        now_ms
            Our clock.

        Raises
        ------
        ConfigurationError
            If the group runs with another number of partitions.
        """
        self._is_calling, self.server_ms = False, event.server_ms
        if isinstance(event, ChangeRefused):
            self._pause_after_conflict(now_ms)
        ours, document = self.membership, event.document
        if document is None and not event.foreign:
            self._damage.forget()
            self.membership, self._stored = Membership.empty(ours.partitions, ours.strategy), None
            return self.membership
        try:
            read = self._parse(document, event.foreign)
        except CoordinationError as error:
            # We go on with what we own: the locks say whether it is ours, not the document.
            self.must_read = True
            if document is not None and is_of_later_release(document):
                self._damage.forget()
                self._pause_until_ms = now_ms + self._interval_ms
            else:
                seen = event.foreign if document is None else fingerprint(document)
                self._pause_until_ms = self._damage.look(seen, ours, me, now_ms)
            return Note("membership_unreadable", {"reason": str(error)})
        if read.partitions != ours.partitions:
            raise ConfigurationError(
                f"The group works on {read.partitions} partitions, and this worker was started with "
                f"{ours.partitions}.",
                remedy="Use the same number of partitions in all workers.",
            )
        self._damage.forget()
        self.membership, self._stored = read, document
        return read

    def _parse(self, document: bytes | None, foreign: str) -> Membership:
        if document is None:
            raise CoordinationError(f"There is a {foreign} in place of the membership document.")
        read, ours = Membership.parse(document), self.membership
        if read.generation == ours.generation and read != ours:
            # Each change has a generation of its own: this was written over one that we know.
            raise CoordinationError(
                f"The membership document is not the one that was written with generation {read.generation}."
            )
        return read

    def differs(self, event: HeartbeatDone) -> bool:
        """Whether a heartbeat found another document than the one that we know."""
        if event.generation != self.membership.generation:
            return True
        if not event.fingerprint or not event.generation:
            return False
        if self._stored is None:
            self._stored = self.membership.document()
        return event.fingerprint != fingerprint(self._stored)

    def heard(self, generation: int) -> None:
        """Take the news that there is a version of this generation."""
        self.must_read |= generation > self.membership.generation
        if self._damage.heard(generation):
            self._damage.forget()
            self._pause_until_ms = None

    def changed(self, event: DocumentChanged) -> Membership:
        """Take the news that our change was done; return the version to act on."""
        if self._proposed is None:
            raise InternalError("A membership change was answered that was not asked for.")
        self.membership = replace(self._proposed, generation=event.generation)
        self._is_calling, self._proposed, self._conflicts, self._stored = False, None, 0, None
        self._damage.forget()
        return self.membership

    def failed(self, now_ms: int) -> None:
        """Nobody knows whether the call was done; reading the document tells."""
        self._is_calling, self._proposed, self.must_read = False, None, True
        self._pause_until_ms = now_ms + self._retry_ms + self._jitter(100)

    def _pause_after_conflict(self, now_ms: int) -> None:
        self._proposed = None
        longest_ms = min(CONFLICT_PAUSE_MS * 2**self._conflicts, CONFLICT_PAUSE_MAX_MS)
        self._conflicts += 1
        self._pause_until_ms = now_ms + self._jitter(longest_ms)
