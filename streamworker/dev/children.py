"""Child processes that end with this process, even if it is killed.

This module starts the embedded server, the demo's programs, and the children of ``run`` and ``dev``. Each
child runs in its own session, so that Ctrl-C on the terminal reaches only this process, which then ends
the children in order.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_END_WITH_US = """
seconds=$1 folder=$2; shift 2
( (read -r _; kill -TERM $$; [ -z "$folder" ] || rm -rf -- "$folder"
while kill -0 $$ && [ "$seconds" -gt 0 ]; do seconds=$((seconds - 1)); sleep 1; done; kill -KILL 0
) <&3 >/dev/null 2>&1 &)
exec "$@" 3<&-
"""
"""A shell script that runs a command beside a watcher. The watcher reads from a pipe whose other end only
this process has open. When this process ends in any way, the kernel closes the pipe; then the watcher sends
SIGTERM to the command and removes the temporary directory. When the command has ended, or after some
seconds, the watcher kills what is left of the process group: a program inherits an ignored SIGTERM from the
program that started this process, and no shell can undo that.

PR_SET_PDEATHSIG was not chosen: it exists on Linux only, signals when the *thread* that started the child
ends, and needs code between fork and exec. The id of the command is that of the process group, too. It
cannot be reused while the watcher, which is in the group, lives. The watcher is no child of the command: a
program that waits for any of its children must not meet one that it has not started.
"""

_FROM_STDIN = "exec 3<&0 </dev/null"
"""Before the script: the pipe is stdin, so that the command has this process's stdout."""
_FROM_STDOUT = "exec 3<&1 >&2"
"""The same for a command that has input: the pipe is stdout, and the command writes to stderr's log."""

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
        File that its stdout and stderr are appended to; those of this process if None. A command with input
        needs one.
    environ
        Variables to add to this process's environment.
    cwd
        Its working directory; that of this process if None.
    stdin
        The bytes on its standard input.
    private
        Whether only this user may read the files that it makes, its log among them. If not, this process's
        umask decides.
    temporary
        A directory to remove if this process ends before the child.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path | None,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes = b"",
        private: bool = True,
        temporary: Path | None = None,
    ) -> None:
        self.log_path = log_path
        watched, lifeline = os.pipe()
        self._lifeline: int | None = lifeline
        with contextlib.ExitStack() as passed_on:
            passed_on.callback(os.close, watched)
            log = None
            if log_path is not None:
                mode = 0o600 if private else 0o666
                log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)
                passed_on.callback(os.close, log)
            script = (_FROM_STDOUT if stdin else _FROM_STDIN) + _END_WITH_US
            limits = (str(KILL_ORPHAN_AFTER_S), str(temporary or ""))
            try:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", script, "sh", *limits, *command],
                    stdin=subprocess.PIPE if stdin else watched,
                    stdout=watched if stdin else log,
                    stderr=log,
                    cwd=cwd,
                    env={**os.environ, **(environ or {})},
                    umask=0o077 if private else -1,
                    start_new_session=True,
                )
            except OSError:
                os.close(lifeline)
                raise
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
        """Return the last lines of its log; empty if there is no log."""
        try:
            text = "" if self.log_path is None else self.log_path.read_text("utf-8", "replace")
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
        """Send SIGTERM and wait; after ``timeout_s`` kill the process. Return whether SIGTERM was enough."""
        self.terminate()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process ends; after ``timeout_s`` kill it. Return whether it ended by itself."""
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
