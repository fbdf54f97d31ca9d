"""Records that are handled side by side: which may start, and up to where all are done.

Rules of this file: numbers in, numbers out. A record is its *place*: 0, 1, 2, ... in the order of
the partition. No entry, clock or task is touched here.

The theory
----------
A window slides over the partition. In it each record is in one of these states::

    add ──► blocked ──(the one before it of its key is done)──► ready ──start──► running ──finish──► done
                                                                  ▲                 │  │
                                                                  └─again─ paused ◄─┘  └─abandon──► abandoned
                                                                              │ defer
                                                                              └─abandon──► abandoned

1. Of the records of one key at most one is not blocked, and it is the first that is not done. So
   one key is handled strictly in order, and never twice at a time. A record without a key is
   blocked by nobody.
2. At most ``concurrency`` records are running. One that pauses before another attempt does not
   count: while a few keys fail, the others have the whole width.
3. Of those that are ready the earliest starts first, since everything behind it waits for it to
   be committed.
4. ``take`` gives away only what is done without a gap from the beginning. So a checkpoint that
   follows it never passes a record that is not done.
5. A record that is abandoned is never done: nothing at or behind it is started or taken any more.
"""

from collections.abc import Hashable
from heapq import heappop, heappush

from streamworker.errors import InternalError


class Window:
    """The records of one partition that are in hand.

    Parameters
    ----------
    concurrency
        Records that may run at the same time.
    size
        Records that may be in the window: those that were added and not taken.

    Examples
    --------
    >>> window = Window(concurrency=2, size=10)
    >>> [window.add(key) for key in ("ann", "ann", "bob")]
    [0, 1, 2]
    >>> [window.start() for _ in range(3)]
    [0, 2, None]
    >>> window.finish(2)
    >>> window.take(10)
    0
    >>> window.finish(0)
    >>> window.take(10), window.start()
    (1, 1)
    """

    __slots__ = (
        "_added",
        "_bar",
        "_concurrency",
        "_done",
        "_head",
        "_keys",
        "_last",
        "_next",
        "_paused",
        "_ready",
        "_running",
        "_size",
        "_started",
        "_taken",
    )

    def __init__(self, *, concurrency: int, size: int) -> None:
        self._concurrency = concurrency
        self._size = size
        self._added = 0
        self._head = 0
        """All before this place are done."""
        self._taken = 0
        self._started = 0
        """All at or after this place have never been started."""
        self._bar: int | None = None
        """Nothing at or after this place is started any more."""
        self._ready: list[int] = []
        """A heap: the earliest first."""
        self._running: set[int] = set()
        self._paused: set[int] = set()
        self._done: set[int] = set()
        """Places after ``_head``."""
        self._keys: dict[int, Hashable] = {}
        """Of the records that have one and are not done."""
        self._last: dict[Hashable, int] = {}
        """The last place of each of these keys."""
        self._next: dict[int, int] = {}
        """From a place to the one that it blocks."""

    # -- records in ------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Records that may be added."""
        return self._size - (self._added - self._taken)

    def add(self, key: Hashable | None) -> int:
        """Put the next record of the partition into the window; return its place."""
        place = self._added
        if place - self._taken >= self._size:
            raise InternalError(f"A record was added to a window that is full ({self._size}).")
        self._added = place + 1
        if key is not None:
            before = self._last.get(key)
            self._keys[place] = key
            self._last[key] = place
            if before is not None:
                self._next[before] = place
                return place
        heappush(self._ready, place)
        return place

    # -- calls -----------------------------------------------------------------------------------

    def start(self) -> int | None:
        """Return the place of the record to handle now, which is running then; None if there is none."""
        ready = self._ready
        if not ready or len(self._running) >= self._concurrency:
            return None
        if self._bar is not None and ready[0] >= self._bar:
            return None
        place = heappop(ready)
        self._running.add(place)
        if place >= self._started:
            self._started = place + 1
        return place

    def finish(self, place: int) -> None:
        """Note that a running record is done; the next one of its key is ready then."""
        self._ends(place)
        if place in self._keys:
            key = self._keys.pop(place)
            behind = self._next.pop(place, None)
            if behind is not None:
                heappush(self._ready, behind)
            else:
                del self._last[key]
        if place != self._head:
            self._done.add(place)
            return
        head, done = place + 1, self._done
        while head in done:
            done.remove(head)
            head += 1
        self._head = head

    def defer(self, place: int) -> None:
        """Note that a running record pauses: its key waits, and its place among the running is free."""
        self._ends(place)
        self._paused.add(place)

    def again(self, place: int) -> None:
        """Note that the pause of a record is over."""
        self._resumes(place)
        heappush(self._ready, place)

    def abandon(self, place: int) -> None:
        """Note that a record which is running or pauses will not be done."""
        if place in self._paused:
            self._resumes(place)
        else:
            self._ends(place)
        self.bar(place)

    def _ends(self, place: int) -> None:
        if place not in self._running:
            raise InternalError(f"The record at place {place} of a window ended, and was not running.")
        self._running.remove(place)

    def _resumes(self, place: int) -> None:
        if place not in self._paused:
            raise InternalError(f"The record at place {place} of a window resumed, and had not paused.")
        self._paused.remove(place)

    # -- results out -----------------------------------------------------------------------------

    def take(self, limit: int) -> int:
        """Return how many records may be committed now, at most ``limit``; they leave the window."""
        count = min(limit, self._head - self._taken)
        if count <= 0:
            return 0
        self._taken += count
        return count

    # -- the end ---------------------------------------------------------------------------------

    def bar(self, place: int) -> None:
        """Start nothing at or after a place any more."""
        self._bar = place if self._bar is None else min(self._bar, place)

    def close(self) -> None:
        """Start only what lies before something that was started already.

        Once that is done too, all that was ever started can be committed, and nobody has to do
        any of it again.
        """
        self.bar(self._started)

    @property
    def is_settled(self) -> bool:
        """Whether nothing runs, and nothing can start unless records are added."""
        if self._running:
            return False
        bar = self._added if self._bar is None else self._bar
        return (not self._ready or self._ready[0] >= bar) and all(place >= bar for place in self._paused)
