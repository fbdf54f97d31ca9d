"""The group repairs a membership document that cannot be read.

Another program wrote to the key: the value is truncated, has another type, or describes an impossible group.
A document of a later release is not damaged, and is left alone (``membership.FORMAT``). For any other
unreadable value, a worker keeps one copy of it for people, and writes the document again as it last **knew**
it: with the same members, owners, held members and weights. So nothing moves, and no member joins again. A
member that the writer did not know yet joins again, as after a failover that lost the latest change.

A member makes the repair. If none does, any other worker that has read a version makes it later: one that
wants to join, or that was removed. If no worker knows a version, the value is moved aside and there is no
document, so that the group starts again from nothing, as it does after its keys were deleted.

Both repairs are as safe as any other change. The locks say what may be committed. The generation is the
server's time, so it is above all earlier ones. And the value is moved aside only if it is still the same
value, by its **fingerprint**: so a healthy document is never moved, and if two workers repair at once, the
second finds it done.

No worker repairs immediately, for two reasons. A person may be working on the key by hand. And a change may
come a few milliseconds before the damage: with a longer pause, the new generation is above one that the
writer has never seen, and a worker that has seen that change repairs first.
"""

import hashlib
from collections.abc import Callable

from streamworker.core.protocols.membership.document import FORMAT, RANKS_MAX, Head, Membership

LOOKED_AT_BYTES = 1_048_577
"""A fingerprint covers at most this many bytes of a value; a document with a thousand workers has a fifth of
that."""
PAUSE_MS = 100
PACE_MS = 100
"""How much longer each member waits than the one before it in join order."""
BEHIND_MS = 500
"""How much longer a worker waits that heard of a change that it has not seen."""
STRANGER_BEATS = 2
"""A worker that is not a member waits this many heartbeat intervals: by then a member has made the repair."""


def fingerprint(document: bytes) -> str:
    """Return a short digest of a value, computed as the Lua scripts do.

    >>> fingerprint(b"")
    '0:da39a3ee5e6b4b0d3255bfef95601890afd80709'
    """
    looked_at = document[:LOOKED_AT_BYTES]
    return f"{len(looked_at)}:{hashlib.sha1(looked_at, usedforsecurity=False).hexdigest()}"


def is_of_later_release(document: bytes) -> bool:
    """Whether a later release may have written a document that this release cannot read.

    >>> is_of_later_release(b'{"generation":7,"v":2}'), is_of_later_release(b'{"generation":7')
    (True, False)
    """
    try:
        head = Head.of(document)
    except (ValueError, RecursionError):
        return False
    return head.begins(document) and head.v > FORMAT


class Damage:
    """The unreadable value that one worker saw, and when that worker may repair it."""

    def __init__(self, interval_ms: int, jitter: Callable[[int], int]) -> None:
        self._interval_ms = interval_ms
        self._jitter = jitter
        self._in_vain = ""
        """The fingerprint of a value whose repair was tried and failed."""
        self._heard = 0
        self.seen = ""
        """The fingerprint of the value; empty while there is nothing to repair."""
        self._due_ms = 0

    def look(self, seen: str, now: Membership, me: str, now_ms: int) -> int:
        """Note the damaged value by its fingerprint; return when this worker may repair it."""
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
        """Whether there is damage and the repair is due."""
        return bool(self.seen) and now_ms >= self._due_ms

    def forget(self) -> None:
        """Forget the damage: the current document is readable, or of a later release."""
        self.seen = self._in_vain = ""

    def failed(self) -> None:
        """Look again and then wait longer: the repair may have been made, or may be forbidden."""
        self.seen, self._in_vain = "", self.seen

    def heard(self, generation: int) -> bool:
        """Note that a generation exists; return whether that is a reason to look again."""
        is_news = generation > self._heard
        self._heard = max(self._heard, generation)
        return is_news and bool(self.seen)
