"""Members of a young group wait before they take partitions, since other workers are about to join.

The workers of an app are mostly started together. The first of them creates the document and is assigned all
partitions; a moment later it is assigned one in fifty. If it took all of them at once, it would ask for every
lock, and then drain and release nearly all of them. So while a group is young, its members wait for a moment
after each change before they take the partitions that it assigns to them. In an older group no member waits,
because no worker handles a partition while it moves.
"""

from streamworker.core.protocols.membership.document import Membership

YOUNG_PAUSES = 6
"""A group is young until this many pauses after its oldest member asked to join. Members do not wait for a
worker that joins an hour later."""


class Founding:
    """One worker's wait in a young group.

    A member takes no partition for ``pause_ms`` after a change of the document; 0 disables the wait.
    """

    def __init__(self, pause_ms: int) -> None:
        self._pause_ms = pause_ms
        self._generation = 0
        self._rest_until_ms = self._young_until_ms = 0
        self._look_again_ms: int | None = None

    def look(self, now: Membership, now_ms: int) -> None:
        """Take a new version of the document."""
        if now.generation == self._generation:
            return
        self._generation = now.generation
        # A generation is the server's time of a change; a member's joined_ms is that of its request to join.
        age_ms = now.generation - min((each.joined_ms for each in now.members), default=0)
        if age_ms < YOUNG_PAUSES * self._pause_ms:
            self._rest_until_ms = now_ms + self._pause_ms
            self._young_until_ms = now_ms + YOUNG_PAUSES * self._pause_ms - age_ms

    def is_resting(self, now_ms: int, *, others_wait: bool) -> bool:
        """Whether this worker still waits: as long as the group is young, if others are about to be added."""
        until_ms = max(self._rest_until_ms, self._young_until_ms if others_wait else 0)
        self._look_again_ms = until_ms if now_ms < until_ms else None
        return self._look_again_ms is not None

    def not_before_ms(self, at_ms: int | None) -> int | None:
        """Return ``at_ms``, or the end of the wait if that is later."""
        return at_ms if at_ms is None or self._look_again_ms is None else max(at_ms, self._look_again_ms)
