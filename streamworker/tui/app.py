"""The loop around the live view: terminal, keys and the clock.

The loop takes one snapshot a second of each processor on the screen, and never writes to Redis. While
Redis does not answer, or refuses, the last frame stays, under a banner with its age and the cause.

:class:`Viewer` holds all state and does no I/O; :func:`watch` connects it to a terminal.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import anyio
from rich.console import Console, RenderableType
from rich.live import Live

from streamworker.core.snapshot import GroupSnapshot
from streamworker.errors import StreamworkerError
from streamworker.tui import model, view

SNAPSHOT_EVERY_S = 1.0
FRAME_EVERY_S = 0.25
"""Time between two frames: the banner's age and a new terminal size appear after at most this time."""

_KEYS_OF = {
    "quit": (b"q", b"Q", b"\x03"),
    "pause": (b"p", b"P", b" "),
    "overview": (b"o", b"O"),
    "next": (b"\t", b"\x1b[C", b"\x1bOC", b"\x1b[B", b"\x1bOB"),
    "previous": (b"\x1b[Z", b"\x1b[D", b"\x1bOD", b"\x1b[A", b"\x1bOA"),
}
_ACTIONS = {key: action for action, keys in _KEYS_OF.items() for key in keys}


Take = Callable[[str], Awaitable[GroupSnapshot]]
"""Takes the snapshot of a processor's group; raises a StreamworkerError if Redis does not answer."""


class Viewer:
    """The state of the live view: the processors to switch between, snapshots and the effect of keys.

    ``titles`` says what each processor is called until its first snapshot is there.
    """

    def __init__(self, titles: Mapping[str, str], notices: Callable[[], Sequence[str]] = lambda: ()) -> None:
        self.targets = tuple(titles)
        self._titles = titles
        self._notices = notices
        self.selected = 0
        self.paused = False
        self.overview = False
        """Whether all processors are on the screen, with a line for each."""
        self.done = False
        self._taken = {target: deque[GroupSnapshot](maxlen=model.RATE_WINDOW) for target in self.targets}
        self._taken_at_ms: dict[str, int] = {}
        self._letters: dict[str, dict[str, str]] = {}
        self._problem: str | None = None

    @property
    def target(self) -> str:
        """The processor that is selected."""
        return self.targets[self.selected]

    @property
    def shown(self) -> tuple[str, ...]:
        """The processors on the screen."""
        return self.targets if self.overview else (self.target,)

    def press(self, action: str) -> None:
        """Perform the action of a key: ``quit``, ``pause``, ``overview``, ``next`` or ``previous``."""
        if action == "quit":
            self.done = True
        elif action == "pause":
            self.paused = not self.paused
        elif action == "overview":
            self.overview = not self.overview and len(self.targets) > 1
        else:
            self.overview = False
            step = 1 if action == "next" else -1
            self.selected = (self.selected + step) % len(self.targets)

    def arrived(self, target: str, snapshot: GroupSnapshot, now_ms: int) -> None:
        """Store a snapshot, and clear the last error."""
        history = self._taken[target]
        if history and snapshot.taken_ms - history[-1].taken_ms > 1000 * model.RATE_WINDOW * SNAPSHOT_EVERY_S:
            # A rate over a pause or an outage would not be the current rate.
            history.clear()
        history.append(snapshot)
        self._taken_at_ms[target] = now_ms
        self._problem = None

    def failed(self, error: StreamworkerError) -> None:
        """Store the error for the banner."""
        self._problem = error.message

    def frame(self, width: int, height: int, now_ms: int) -> RenderableType:
        """Return the frame; ``now_ms`` is the viewer's own clock, as in :meth:`arrived`."""
        tabs = view.Tabs(self.targets, self.selected, self.paused, tuple(self._notices()), self.overview)
        models = [found for target in self.shown if (found := self._model(target, now_ms))]
        if not models:
            text = self._problem or f"Waiting for {self._titles[self.target]} ..."
            return view.waiting(text, width, height, tabs)
        if self.overview:
            return view.render_overview(models, width, height, tabs)
        return view.render(models[0], width, height, tabs)

    def _model(self, target: str, now_ms: int) -> model.Model | None:
        history = self._taken[target]
        if not history:
            return None
        age_ms = now_ms - self._taken_at_ms[target]
        rows = model.rows(
            history[0],
            history[-1],
            letters=self._letters.get(target),
            outage=model.Outage(self._problem, age_ms) if self._problem else None,
        )
        self._letters[target] = dict(rows.letters)
        return rows


async def watch(
    titles: Mapping[str, str],
    take: Take,
    *,
    console: Console,
    stopped: Callable[[], bool] = lambda: False,
    notices: Callable[[], Sequence[str]] = lambda: (),
) -> None:
    """Show the live view until the user presses ``q`` or ``stopped()`` returns true.

    ``notices()`` returns the warnings that stand above everything else. An error of Redis does not end the
    view, which tries again a second later. The terminal is always restored.
    """
    viewer = Viewer(titles, notices)
    with (
        _raw_keys() as keyboard,
        Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
    ):
        async with anyio.create_task_group() as group:
            pressed = _Bell()
            group.start_soon(_snapshots, viewer, take, pressed)
            if keyboard is not None:
                group.start_soon(_keys, viewer, keyboard, pressed)
            while not viewer.done and not stopped():
                size = console.size
                live.update(viewer.frame(size.width, size.height, _now_ms()), refresh=True)
                await pressed.wait(FRAME_EVERY_S)
            group.cancel_scope.cancel()


async def frame_once(take: Callable[[], Awaitable[GroupSnapshot]], *, console: Console) -> None:
    """Print one frame with rates, and return; used where stdout is no terminal."""
    earlier = await take()
    await anyio.sleep(SNAPSHOT_EVERY_S)
    rows = model.rows(earlier, await take())
    console.print(view.render(rows, max(80, console.width), max(24, console.height)))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Bell:
    """Wakes all waiting tasks each time ``ring`` is called."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def wait(self, at_most_s: float) -> None:
        with anyio.move_on_after(at_most_s):
            await self._event.wait()


async def _snapshots(viewer: Viewer, take: Take, pressed: _Bell) -> None:
    while True:
        shown = viewer.shown
        due = time.monotonic() + SNAPSHOT_EVERY_S
        if not viewer.paused:
            try:
                for target in shown:
                    viewer.arrived(target, await take(target), _now_ms())
            except StreamworkerError as error:
                viewer.failed(error)
        # A switch to another processor takes its first snapshot at once.
        while viewer.shown == shown and (left := due - time.monotonic()) > 0:
            await pressed.wait(left)


async def _keys(viewer: Viewer, keyboard: int, pressed: _Bell) -> None:
    while True:
        await anyio.wait_readable(keyboard)
        typed = os.read(keyboard, 32)
        if not typed:
            return
        action = _ACTIONS.get(typed) or _ACTIONS.get(typed[:1])
        if action is not None:
            viewer.press(action)
            pressed.ring()


@contextmanager
def _raw_keys() -> Iterator[int | None]:
    """Put the terminal into cbreak mode; yield its descriptor, or None if stdin is no terminal."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
