"""Every error that streamworker raises, and what causes it.

    StreamworkerError
    ├── ConfigurationError        a wrong name, setting or type; nothing was started
    │   └── JavaMissing           Spark needs a Java runtime, and none was found
    ├── RecordError               one record: it cannot be encoded or routed
    │   └── DecodeError           one entry in Redis is not a record of this stream
    ├── ProducerError             a send failed, or its outcome is unknown
    │   └── StreamFull            the partition is full because a group lags; nothing was written
    ├── CoordinationError         the group's view and this worker's view differ
    ├── BackendError              Redis did not execute a call
    │   ├── BackendUnavailable    Redis did not answer: the outcome of the call is unknown
    │   ├── BackendRefused        Redis refused the call
    │   └── AuthenticationFailed  Redis did not accept the user or password
    ├── ArchiveError              an archive cannot be read or written as it is declared
    │   ├── ArchiveUnavailable    its store did not answer or refused; the call may be repeated
    │   └── ArchiveConflict       it holds other records than the stream, or lacks some: a person decides
    ├── DataLoss                  a reader of the acked log found rows missing or changed
    ├── SchemaChanged             a running query lacks a column that newer rows have
    ├── ProcessingError           a result or a table's value does not fit, or a policy gave up
    │   └── ProcessDied           worker after worker died in the call of one record
    └── InternalError             a broken invariant: a bug in streamworker

Outcomes that are normal in a healthy system (a peer holds the lock, a commit was fenced) are
values, not exceptions; see ``core.ownership.locks`` and ``redisio.data.commit``.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class StreamworkerError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    message
        What is wrong; it names the setting, key, record or entry.
    remedy
        What to do about it; shown after the message.
    """

    def __init__(self, message: str, *, remedy: str = "") -> None:
        if message.endswith("..") and not message.endswith("..."):
            message = message[:-1]  # It ends with somebody's text, which has a full stop of its own.
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()

    def __reduce__(self) -> tuple[object, ...]:
        # Spark, for one, pickles errors between processes; the default would lose the keyword argument.
        return _again, (type(self), self.message, self.remedy)


class ConfigurationError(StreamworkerError):
    """The program or its settings are wrong; nothing was started."""


class JavaMissing(ConfigurationError):
    """Spark needs a Java runtime, and no suitable one was found."""


class RecordError(StreamworkerError):
    """A record cannot be encoded, routed or turned into Arrow."""


class DecodeError(RecordError):
    """An entry does not hold a record of its stream's type."""


class ProducerError(StreamworkerError):
    """A send failed, or its outcome is unknown."""


class StreamFull(ProducerError):
    """A partition is at its limit because a group lags; nothing was written."""


class CoordinationError(StreamworkerError):
    """The group's view and this worker's view differ."""


class BackendError(StreamworkerError):
    """Redis did not execute a call."""


class BackendUnavailable(BackendError):
    """Redis did not answer: the call may or may not have been executed."""


class BackendRefused(BackendError):
    """Redis refused a call: out of memory, read-only, no permission, wrong type."""


class AuthenticationFailed(BackendError):
    """Redis did not accept the user or password."""


class ArchiveError(StreamworkerError):
    """An archive cannot be read or written as it is declared."""


class ArchiveUnavailable(ArchiveError):
    """The store of an archive did not answer, or refused a call, which may be repeated."""


class ArchiveConflict(ArchiveError):
    """An archive holds other records than its stream, lacks some, or is another stream's."""


class DataLoss(StreamworkerError):
    """Rows of an acked log that a reader needs are missing or were replaced."""


class SchemaChanged(StreamworkerError):
    """A running query met rows with a column that it was not planned with; it wrote nothing of them."""


class ProcessingError(StreamworkerError):
    """What a function returned or a table holds does not fit its declaration, or a policy is to stop."""


class ProcessDied(ProcessingError):
    """Worker after worker died in the call of one record; a key of ``errors=``, and never raised."""


class InternalError(StreamworkerError):
    """This should never happen. Please report it with the log."""

    def __init__(self, message: str) -> None:
        super().__init__(message, remedy="This is a bug in streamworker; please report it with the log.")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question that begins a remedy if a known name is near to one that is wrong; else nothing.

    >>> did_you_mean("time_out", ["batch", "timeout"]), did_you_mean("x", ["batch", "timeout"])
    ("Did you mean 'timeout'? ", '')
    """
    near = get_close_matches(name, [*known], n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


def _again(kind: type[StreamworkerError], message: str, remedy: str) -> StreamworkerError:
    error = kind.__new__(kind, message, remedy)
    StreamworkerError.__init__(error, message, remedy=remedy)
    return error
