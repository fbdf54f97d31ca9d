"""Orders records that run concurrently: which may start, and up to where all are done.

Rules of this file: numbers in, numbers out. A record is identified by its *index*: 0, 1, 2, ...
in the order of the partition. The code touches no entry, clock or task.

The theory
----------
A window slides over the partition. Each record in it is in one of these states::

    add ──► blocked ──(the one before it of its key is done)──► ready ──start──► running ──finish──► done
                                                                  ▲                 │  │
                                                                  └─again─ paused ◄─┘  └─abandon──► abandoned
                                                                              │ defer
                                                                              └─abandon──► abandoned

1. Of the records of one key at most one is not blocked: the first that is not done. So the records of one key
   are handled strictly in order, and never two at a time. A record without a key is never blocked.
2. At most ``concurrency`` records are running. A record that pauses before another attempt does not count:
   while a few keys fail, the other keys can use the full concurrency.
3. The earliest of the ready records starts first, since all records after it wait for it before they can be
   committed.
4. ``take`` returns only records that are done without a gap from the beginning. So a checkpoint that follows
   it never advances beyond a record that is not done.
5. A record that is abandoned is never done: no record at or after it is started or taken any more.
"""

from collections.abc import Hashable
from heapq import heappop, heappush

from streamworker.errors import InternalError


class CallWindow:
    """The records of one partition that are being handled.

    At most ``concurrency`` of them run at the same time, and at most ``size`` were added and not taken.

    >>> window = CallWindow(concurrency=2, size=10)
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

    def __init__(self, *, concurrency: int, size: int) -> None:
        self._concurrency = concurrency
        self._size = size
        self._added = 0
        self._head = 0
        """All records before this position are done."""
        self._taken = 0
        self._started = 0
        """All records at or after this position have never been started."""
        self._bar: int | None = None
        """No record at or after this position is started any more."""
        self._ready: list[int] = []
        """The positions of ready records, as a heap: the earliest first."""
        self._running: set[int] = set()
        self._paused: set[int] = set()
        self._done: set[int] = set()
        """The positions of done records after ``_head``."""
        self._keys: dict[int, Hashable] = {}
        """The keys by position, of the records that have a key and are not done."""
        self._last: dict[Hashable, int] = {}
        """The last position of each of these keys."""
        self._next: dict[int, int] = {}
        """From a position to the position that it blocks."""

    # -- records in ------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """The number of records that may be added."""
        return self._size - (self._added - self._taken)

    def add(self, key: Hashable | None) -> int:
        """Add the next record of the partition to the window; return its position."""
        index = self._added
        if index - self._taken >= self._size:
            raise InternalError(f"A record was added to a window that is full ({self._size}).")
        self._added = index + 1
        if key is not None:
            before = self._last.get(key)
            self._keys[index] = key
            self._last[key] = index
            if before is not None:
                self._next[before] = index
                return index
        heappush(self._ready, index)
        return index

    # -- calls -----------------------------------------------------------------------------------

    def start(self) -> int | None:
        """Return the position of the record to handle now, which is then running; None if there is none."""
        ready = self._ready
        if not ready or len(self._running) >= self._concurrency:
            return None
        if self._bar is not None and ready[0] >= self._bar:
            return None
        index = heappop(ready)
        self._running.add(index)
        if index >= self._started:
            self._started = index + 1
        return index

    def finish(self, index: int) -> None:
        """Note that a running record is done; the next record of its key then becomes ready."""
        self._ends(index)
        if index in self._keys:
            key = self._keys.pop(index)
            behind = self._next.pop(index, None)
            if behind is not None:
                heappush(self._ready, behind)
            else:
                del self._last[key]
        if index != self._head:
            self._done.add(index)
            return
        head, done = index + 1, self._done
        while head in done:
            done.remove(head)
            head += 1
        self._head = head

    def defer(self, index: int) -> None:
        """Note that a running record pauses: its key waits, and another record may run in its stead."""
        self._ends(index)
        self._paused.add(index)

    def again(self, index: int) -> None:
        """Note that the pause of a record has ended."""
        self._resumes(index)
        heappush(self._ready, index)

    def abandon(self, index: int) -> None:
        """Note that a running or paused record will not be done."""
        if index in self._paused:
            self._resumes(index)
        else:
            self._ends(index)
        self.bar(index)

    def _ends(self, index: int) -> None:
        if index not in self._running:
            raise InternalError(f"The record at index {index} of a window ended, and was not running.")
        self._running.remove(index)

    def _resumes(self, index: int) -> None:
        if index not in self._paused:
            raise InternalError(f"The record at index {index} of a window resumed, and had not paused.")
        self._paused.remove(index)

    # -- results out -----------------------------------------------------------------------------

    def take(self, limit: int) -> int:
        """Return how many records may be committed now, at most ``limit``; they leave the window."""
        count = max(0, min(limit, self._head - self._taken))
        self._taken += count
        return count

    # -- the end ---------------------------------------------------------------------------------

    def bar(self, index: int) -> None:
        """Start no record at or after a position any more."""
        self._bar = index if self._bar is None else min(self._bar, index)

    def close(self) -> None:
        """Start only records before the last one that was started already.

        When they are done too, every record that was ever started can be committed, and no record has to be
        handled again.
        """
        self.bar(self._started)

    @property
    def is_settled(self) -> bool:
        """Whether no record runs, and none can start unless records are added."""
        if self._running:
            return False
        bar = self._added if self._bar is None else self._bar
        return (not self._ready or self._ready[0] >= bar) and all(index >= bar for index in self._paused)
