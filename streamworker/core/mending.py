"""A document that cannot be read is put right by the group itself.

Something else wrote to the key: what stands there is cut off, of another type, or says what no group can
say. A document of a later release is no such thing, and is left alone (``membership.FORMAT``). Of all else
the group keeps one copy for people, and writes the document anew as it was **known**: with its members, who
stay what they are, its owners, held places and weights. So nothing moves, and nobody joins again. Somebody
whom the writer did not know yet joins anew, as after a failover that lost the latest change.

A member does so, or later whoever else has read a version: one who wants to join, or who was removed. Does
nobody who is there know any? Then it is put aside and there is none, so that the group begins anew, as it
does after its keys were deleted.

Either way is as safe as any other change. What may be committed is said by the locks. The generation is the
server's time, so it is above all that were before. And it is put aside only if it is still the very same
value, by its **fingerprint**: a healthy document never is, and of two that mend one finds it done.

Nothing is done at once, for two reasons. Somebody may be at work there by hand. And between a change and
what damaged it lie a few milliseconds: with a pause of more the new generation is above one that the writer
has never seen, and who has seen it goes first.
"""

import hashlib
import json
from collections.abc import Callable

from streamworker.core.membership import BEGINNING, FORMAT, RANKS_MAX, Membership, read_whole

LOOKED_AT_BYTES = 1_048_577
"""A fingerprint is made from so much of a value: a document is a fifth of that with a thousand workers."""
PAUSE_MS = 100
PACE_MS = 100
"""By how much each later member waits longer than the one before it in join order."""
BEHIND_MS = 500
"""By how much longer those wait who heard of a change that they have not seen."""
STRANGER_BEATS = 2
"""So many heartbeats somebody waits who is no member: by then those who are have done it."""


def fingerprint(document: bytes) -> str:
    """Return a value in few letters, as the scripts do.

    Examples
    --------
    >>> fingerprint(b"")
    '0:da39a3ee5e6b4b0d3255bfef95601890afd80709'
    """
    looked_at = document[:LOOKED_AT_BYTES]
    return f"{len(looked_at)}:{hashlib.sha1(looked_at, usedforsecurity=False).hexdigest()}"


def is_of_later_release(document: bytes) -> bool:
    """Whether a document that cannot be read is one that a later release may have written.

    Examples
    --------
    >>> is_of_later_release(b'{"generation":7,"v":2}'), is_of_later_release(b'{"generation":7')
    (True, False)
    """
    try:
        fields = json.loads(document) if document.startswith(BEGINNING) else {}
        return read_whole(fields["generation"]) > 0 and read_whole(fields["v"]) > FORMAT
    except (ValueError, RecursionError, LookupError, TypeError):
        return False


class Damage:
    """What one worker saw that is no document, and when it may put that right.

    Parameters
    ----------
    interval_ms
        Pace of the heartbeats.
    jitter
        Returns a number from 0 up to its argument.
    """

    def __init__(self, interval_ms: int, jitter: Callable[[int], int]) -> None:
        self._interval_ms = interval_ms
        self._jitter = jitter
        self._in_vain = ""
        """What could not be put right when that was tried."""
        self._heard = 0
        self.seen = ""
        """Its fingerprint; empty while there is nothing to put right."""
        self._due_ms = 0

    def look(self, seen: str, now: Membership, me: str, now_ms: int) -> int:
        """Take note of what stands there; return when it may be put right.

        Parameters
        ----------
        seen
            Its fingerprint.
        now
            The newest version of the group that we know.
        me
            Our id.
        now_ms
            Our clock.
        """
        if seen != self.seen:
            self.seen, self._due_ms = seen, now_ms + self._pause_ms(now, me)
            if seen == self._in_vain:
                self._due_ms += self._interval_ms
        return max(self._due_ms, now_ms)

    def _pause_ms(self, now: Membership, me: str) -> int:
        if now.present(me) is None:
            return STRANGER_BEATS * self._interval_ms + self._jitter(self._interval_ms // 4)
        rank = min(now.present_ids.index(me), RANKS_MAX)
        return PAUSE_MS + rank * PACE_MS + (BEHIND_MS if self._heard > now.generation else 0)

    def is_due(self, now_ms: int) -> bool:
        """Whether there is damage, and it is time."""
        return bool(self.seen) and now_ms >= self._due_ms

    def forget(self) -> None:
        """What stands there now can be read, or is another release's."""
        self.seen = self._in_vain = ""

    def failed(self) -> None:
        """Nobody knows whether it was done, and it may be forbidden: look again, and wait longer."""
        self.seen, self._in_vain = "", self.seen

    def heard(self, generation: int) -> bool:
        """Somebody said that there is this generation; whether that is a reason to look again."""
        is_news = generation > self._heard
        self._heard = max(self._heard, generation)
        return is_news and bool(self.seen)
