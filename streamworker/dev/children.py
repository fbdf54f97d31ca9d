"""Child processes that end with this process, even if it is killed.

This module starts the embedded server, the demo's workers and its Spark driver. Each child writes its
output to its own file. It runs in its own session, so that Ctrl-C on the terminal reaches only this
process, which then ends the children in order.
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
"""A shell script that runs a command beside a watcher. The watcher reads from a pipe whose other end only
this process has open. When this process ends in any way, the kernel closes the pipe; then the watcher
ends the command and removes the temporary directory. If the command does not end on SIGTERM, the watcher
kills it: a program inherits an ignored SIGTERM from the program that started this process, and no shell
can undo that.

PR_SET_PDEATHSIG was not chosen: it exists on Linux only, signals when the *thread* that started the child
ends, and needs code between fork and exec. ``kill 0`` signals the process group of watcher and command:
unlike a process id, its id cannot have been reused. The pipe is descriptor 1, since dash cannot name
descriptors above 9.
"""

KILL_TIMEOUT_S = 10.0
KILL_ORPHAN_AFTER_S = 15
"""Whole seconds that a command may take to end after this process; more than a worker's grace period."""


class Child:
    """A running child process.

    Parameters
    ----------
    command
        Program and arguments. Every user of the machine can see them, so they must hold no secret.
    log_path
        File for its stdout and stderr; created with mode 0600, or truncated.
    environ
        Variables to add to this process's environment.
    cwd
        Its working directory; that of this process if None.
    stdin
        The bytes on its standard input.
    temporary
        A directory to remove if this process ends before the child.
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
            # If the child has ended already, its log shows why.
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
        """Send SIGTERM, and do not wait; does nothing if the process has ended."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process (SIGKILL), and all others in its process group."""
        if self.running:
            self._process.kill()
        self._finish()

    def stop(self, timeout_s: float) -> bool:
        """Send SIGTERM and wait; after ``timeout_s`` kill the process.

        Returns
        -------
        bool
            Whether the process ended without SIGKILL.
        """
        self.terminate()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process ends; after ``timeout_s`` kill it.

        Returns
        -------
        bool
            Whether the process ended without SIGKILL.
        """
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self._finish()
        return True

    def _finish(self) -> None:
        """Kill the remaining processes of the group, such as the watcher or a JVM."""
        if self._lifeline is None:
            return
        # While the watcher lives, the kernel does not reuse the group's id.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(KILL_TIMEOUT_S)
        os.close(self._lifeline)
        self._lifeline = None
