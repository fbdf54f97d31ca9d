"""``run --reload``: start the worker anew when a Python file changes."""

import os
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from streamworker.cli.children import Children, two_stages
from streamworker.cli.support import say

LOOK_EVERY_S = 0.5
_NOT_OURS = {".venv", "venv", ".git", "node_modules", "__pycache__"}


def run_reloading(arguments: Sequence[str]) -> int:
    """Run a worker, and another one after each change, until a signal; return its exit code.

    The old worker drains and leaves first, so that the records in hand are not run twice. A
    worker that fails, on a syntax error for example, is started again after the next change.
    """
    changed = watcher(Path.cwd())
    told = False

    def tell() -> None:
        nonlocal told
        told = True

    while True:
        with Children() as children:

            def stop(children: Children = children) -> None:
                tell()
                children.stop()

            with two_stages(stop, children.force):
                children.start("worker", arguments)
                file = None
                while not told and file is None:
                    time.sleep(LOOK_EVERY_S)
                    children.report()
                    file = changed()
                if file is not None and not told:
                    say(f"{file} changed: starting the worker anew.", error=True)
                children.stop()
                code = children.wait()
        if told:
            return code


def watcher(folder: Path) -> Callable[[], Path | None]:
    """Return a function that names a Python file which changed since its last call, if any did.

    With ``watchfiles`` installed the system tells about changes; without it, times are compared.
    """
    if find_spec("watchfiles") is not None:
        return _watchfiles(folder)
    before = _times(folder)

    def changed() -> Path | None:
        nonlocal before
        now = _times(folder)
        different = [path for path in now.keys() | before.keys() if now.get(path) != before.get(path)]
        before = now
        return min(different).relative_to(folder) if different else None

    return changed


def _watchfiles(folder: Path) -> Callable[[], Path | None]:
    from watchfiles import PythonFilter, watch  # type: ignore[import-not-found,unused-ignore]

    # yield_on_timeout lets the caller look at its signals in between.
    changes = watch(
        folder, watch_filter=PythonFilter(), yield_on_timeout=True, rust_timeout=50, raise_interrupt=False
    )

    def changed() -> Path | None:
        paths = sorted(Path(path) for _, path in next(changes, set()))
        return paths[0].relative_to(folder) if paths else None

    return changed


def _times(folder: Path) -> dict[Path, int]:
    times: dict[Path, int] = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _NOT_OURS]
        for name in files:
            if name.endswith(".py"):
                path = Path(parent, name)
                try:
                    times[path] = path.stat().st_mtime_ns
                except FileNotFoundError:
                    # Editors replace files; the next look sees the new one.
                    continue
    return times
