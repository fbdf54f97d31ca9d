"""Nobody in a young group takes a partition at once: others are about to join.

Workers of an app are mostly started together. The first of them makes the document and has all
partitions assigned to it; a moment later it has one in fifty. If it took them at once, it would ask for
every lock, and then drain and release nearly all of them. So while a group is young, its members wait
for a moment after each change before they take what it assigns to them. In a group that is older nobody
waits: there a partition that moves stands still until it is taken.
"""

from streamworker.core.membership import Membership

YOUNG_PAUSES = 6
"""A group is young until so many pauses after its oldest member wished to join; a worker that joins an
hour later is not waited with."""


class Founding:
    """One worker's wait in a young group.

    Parameters
    ----------
    pause_ms
        For how long nothing is taken after a change of the document; 0 to wait never.
    """

    def __init__(self, pause_ms: int) -> None:
        self._pause_ms = pause_ms
        self._generation = 0
        self._rest_until_ms = self._young_until_ms = 0
        self._look_again_ms: int | None = None

    def look(self, now: Membership, now_ms: int) -> None:
        """Take note of a document."""
        if now.generation == self._generation:
            return
        self._generation = now.generation
        # A generation is the server's time of a change, as a member's joined_ms is that of its wish.
        age_ms = now.generation - min((each.joined_ms for each in now.members), default=0)
        if age_ms < YOUNG_PAUSES * self._pause_ms:
            self._rest_until_ms = now_ms + self._pause_ms
            self._young_until_ms = now_ms + YOUNG_PAUSES * self._pause_ms - age_ms

    def is_resting(self, now_ms: int, *, others_wait: bool) -> bool:
        """Whether no partition is taken yet.

        Parameters
        ----------
        others_wait
            Whether somebody is about to be let in: then for as long as the group is young.
        """
        until_ms = max(self._rest_until_ms, self._young_until_ms if others_wait else 0)
        self._look_again_ms = until_ms if now_ms < until_ms else None
        return self._look_again_ms is not None

    def not_before_ms(self, at_ms: int | None) -> int | None:
        """Return when may be done about partitions what is due at a time."""
        return at_ms if at_ms is None or self._look_again_ms is None else max(at_ms, self._look_again_ms)
