"""``run --reload``: restarts the worker when a Python file changes."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from streamworker.cli.output import say
from streamworker.cli.workers.children import Children, two_stages
from streamworker.errors import ConfigurationError

LOOK_EVERY_S = 0.5


def run_reloading(arguments: Sequence[str]) -> int:
    """Run a worker, restart it after each change until a signal comes, and return its exit code.

    The old worker drains and leaves first, so that no record runs twice. A worker that fails, for
    example on a syntax error, is started again after the next change.
    """
    changed = watcher(Path.cwd())
    stopping = threading.Event()
    while True:
        with Children() as children:

            def stop(children: Children = children) -> None:
                stopping.set()
                children.stop()

            with two_stages(stop, children.force):
                children.start("worker", arguments)
                file = None
                while not stopping.is_set() and file is None:
                    time.sleep(LOOK_EVERY_S)
                    children.report()
                    file = changed()
                if file is not None and not stopping.is_set():
                    say(f"{file} changed: restarting the worker.", error=True)
                children.stop()
                code = children.wait()
        if stopping.is_set():
            return code


def watcher(folder: Path) -> Callable[[], Path | None]:
    """Return a function that returns a Python file that changed since its last call, or None."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        raise ConfigurationError(
            "--reload needs watchfiles, which is not installed.",
            remedy="Run: pip install 'streamworker[dev]'",
        ) from None
    # yield_on_timeout returns to the caller regularly, so that it can handle signals.
    changes = watch(
        folder, watch_filter=PythonFilter(), yield_on_timeout=True, rust_timeout=50, raise_interrupt=False
    )

    def changed() -> Path | None:
        paths = sorted(Path(path) for _, path in next(changes, set()))
        return paths[0].relative_to(folder) if paths else None

    return changed
