"""Child processes that end with us, however we end.

The embedded server, the demo's workers and its Spark driver are started here. A child's
output goes to a file of its own; it runs in its own session, so that Ctrl-C on the terminal
reaches us alone and we decide the order in which things end.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_END_WITH_US = """
seconds=$1; shift
(trap '' TERM; read -r _ <&1; kill -TERM 0; [ -z "$0" ] || rm -rf -- "$0"
while kill -0 $$ 2>&-; do [ "$seconds" -gt 0 ] || kill -KILL 0; seconds=$((seconds - 1)); sleep 1; done
) & exec "$@" >&2
"""
"""Shell words that run a command beside a watcher that reads from a pipe whose other end only
we hold. The kernel closes it when we end, however we end, and the watcher then ends the command
and removes the directory that we can no longer remove. A command that does not end on that is
killed: it may ignore SIGTERM without a word of its own, since a program inherits that from
whoever started us, and no shell can undo it.

Chosen over PR_SET_PDEATHSIG, which is Linux only, fires already when the *thread* that started
the child ends, and needs code between fork and exec. ``kill 0`` signals the process group that
watcher and command share: unlike a process id, it cannot belong to a stranger by then. The pipe
comes in as descriptor 1, since dash cannot name descriptors above 9.
"""

KILL_TIMEOUT_S = 10.0
KILL_ORPHAN_AFTER_S = 15
"""Whole seconds that a command may take to end after we have: more than a worker's grace period."""


class Child:
    """A running child process.

    Parameters
    ----------
    command
        Program and arguments. Seen by every user of the machine, so never a secret.
    log_path
        Where its stdout and stderr go; made with mode 0600, emptied if it exists.
    environ
        Variables added to our own environment.
    cwd
        Where it runs; here if None.
    stdin
        What it finds on its standard input.
    temporary
        A directory to be removed if we end without having ended the child.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes = b"",
        temporary: Path | None = None,
    ) -> None:
        self.log_path = log_path
        watched, lifeline = os.pipe()
        self._lifeline: int | None = lifeline
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _END_WITH_US, str(temporary or ""), str(KILL_ORPHAN_AFTER_S), *command],
                stdin=subprocess.PIPE,
                stdout=watched,
                stderr=log,
                cwd=cwd,
                env={**os.environ, **(environ or {})},
                umask=0o077,
                start_new_session=True,
            )
        except OSError:
            os.close(lifeline)
            raise
        finally:
            os.close(log)
            os.close(watched)
        if self._process.stdin is not None:
            # A child that ended at once says why in its log.
            with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
                pipe.write(stdin)

    @property
    def pid(self) -> int:
        """Process id of the command."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code; negative for a signal, None while it runs."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of its log; empty if the log is gone."""
        try:
            text = self.log_path.read_text("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def terminate(self) -> None:
        """Ask it to end (SIGTERM) and do not wait; does nothing if it has ended."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL), and with it whatever it started in its process group."""
        if self.running:
            self._process.kill()
        self._finish()

    def stop(self, timeout_s: float) -> bool:
        """Ask it to end and wait; after ``timeout_s`` end it with SIGKILL.

        Returns
        -------
        bool
            Whether it ended by itself.
        """
        self.terminate()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended by itself; after ``timeout_s`` end it with SIGKILL.

        Returns
        -------
        bool
            Whether it ended by itself.
        """
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self._finish()
        return True

    def _finish(self) -> None:
        """End what the command left in its process group: the watcher, a JVM."""
        if self._lifeline is None:
            return
        # The watcher keeps the group's id from being given to others, so it dies last of all.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(KILL_TIMEOUT_S)
        os.close(self._lifeline)
        self._lifeline = None
