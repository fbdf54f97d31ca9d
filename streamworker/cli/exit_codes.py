"""Exit codes of ``streamworker``. The table in docs/cli.md is generated from them."""

from enum import IntEnum

from streamworker.errors import BackendError, ConfigurationError, InternalError, StreamworkerError


class ExitCode(IntEnum):
    """Exit codes. A negative code, or one above 128, means that a signal ended the process."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIGURATION = 3
    REDIS = 4
    FORCED = 5
    UNTOLD = 6
    BUG = 70
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "The command succeeded, or a worker left after a signal.",
    ExitCode.FAILED: "The result is bad: bad lines, a failed check of doctor, a failed pipeline, one of "
    "spark --once that was stopped before it had read all. "
    "Or Redis does not hold what the command names: a dead letter, a record, a group that never ran.",
    ExitCode.USAGE: "The command line is wrong: an unknown option, a missing argument.",
    ExitCode.CONFIGURATION: "The app, its settings or this machine are wrong: an unknown app path, a name, "
    "a type without an Arrow form, what schema check refuses, a server that evicts, no Java. Starting again "
    "will not help.",
    ExitCode.REDIS: "Redis did not answer, or refused: not reachable, wrong password, no right, out of "
    "memory. A worker waits for a Redis that it cannot reach, at its start, too.",
    ExitCode.FORCED: "The worker got a second signal, or had not ended shutdown_timeout_ms after the first: "
    "the log says what held it. Batches that were not committed will run again.",
    ExitCode.UNTOLD: "Your code ended the worker without a signal, for example by sys.exit(). The log says "
    "why; batches under way will run again.",
    ExitCode.BUG: "A broken invariant: please report it with the log.",
    ExitCode.INTERRUPTED: "Ctrl-C ended a command that is not a worker.",
}


def code_for(error: StreamworkerError) -> ExitCode:
    """Return the exit code for an error that ends a command."""
    if isinstance(error, ConfigurationError):
        return ExitCode.CONFIGURATION
    if isinstance(error, BackendError):
        return ExitCode.REDIS
    if isinstance(error, InternalError):
        return ExitCode.BUG
    return ExitCode.FAILED
