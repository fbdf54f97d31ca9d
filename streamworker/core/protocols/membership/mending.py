"""The group repairs a membership document that cannot be read.

Another program wrote to the key: the value is truncated, has another type, or describes an impossible group.
A document of a later release is not damaged, and is left alone (``document.FORMATS``). For any other
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

No worker repairs immediately: a person may be working on the key by hand, and a worker that hears of a change
meanwhile reads again. If the writer had not yet read the last change before the damage, that change is lost,
as in a failover, and whoever wanted it makes it again.
"""

import hashlib
from collections.abc import Callable

from streamworker.core.protocols.membership.document import FORMATS, Head

LOOKED_AT_BYTES = 1_048_577
"""A fingerprint covers at most this many bytes of a value; a document with a thousand workers has a fifth of
that."""
PAUSE_MS = 100
"""A member waits this long, and everybody at random up to as long again."""
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

    >>> is_of_later_release(b'{"generation":7,"v":9}'), is_of_later_release(b'{"generation":7')
    (True, False)
    """
    try:
        head = Head.of(document)
    except (ValueError, RecursionError):
        return False
    return head.begins(document) and head.v > FORMATS[-1]


class Damage:
    """The unreadable value that one worker saw, and when that worker may repair it."""

    def __init__(self, interval_ms: int, jitter: Callable[[int], int]) -> None:
        self._interval_ms = interval_ms
        self._jitter = jitter
        self.seen = ""
        """The fingerprint of the value; empty while there is nothing to repair."""
        self._due_ms = 0

    def look(self, seen: str, is_member: bool, now_ms: int) -> int:
        """Note the damaged value by its fingerprint; return when this worker may repair it."""
        if seen != self.seen:
            pause_ms = PAUSE_MS if is_member else STRANGER_BEATS * self._interval_ms
            self.seen, self._due_ms = seen, now_ms + pause_ms + self._jitter(PAUSE_MS)
        return max(self._due_ms, now_ms)

    def is_due(self, now_ms: int) -> bool:
        """Whether there is damage and the repair is due."""
        return bool(self.seen) and now_ms >= self._due_ms

    def try_later(self, now_ms: int) -> None:
        """Wait longer before the next try: the one that begins may have no answer, or be forbidden."""
        self._due_ms = now_ms + self._interval_ms

    def forget(self) -> None:
        """Forget the damage: the current document is readable, or of a later release."""
        self.seen = ""
