"""Every error that streamworker raises, and whose fault it is.

    StreamworkerError
    ├── ConfigurationError        yours, before anything runs: a name, a setting, a type
    │   └── JavaMissing           Spark needs a Java that is not there
    ├── RecordError               one record: it cannot be encoded or routed
    │   └── DecodeError           one entry in Redis is not a record of this stream
    ├── ProducerError             a send was not done
    │   └── StreamFull            ... because readers are behind; nothing unread is dropped
    ├── CoordinationError         the group decided otherwise
    │   ├── FencedError           another worker owns the partition now
    │   └── MembershipLost        the group removed this worker; it rejoins by itself
    ├── BackendError              Redis
    │   ├── BackendUnavailable    no answer: the outcome of the call is unknown
    │   ├── BackendRefused        an answer: no
    │   └── AuthenticationFailed  an answer: who are you
    ├── DataLoss                  a reader of the acked log found rows missing or changed
    ├── ProcessingError           a processor function failed and its policy gave up
    └── InternalError             a broken invariant: a bug of ours

Outcomes that a healthy system produces every day (a lock held by a peer, a commit that
was fenced) are values, not exceptions; see ``core.locks`` and ``redisio.commit``.
"""


class StreamworkerError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    message
        What is wrong; names the setting, key, record or entry.
    remedy
        What to do about it. Shown after the message.
    """

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross processes, from Spark's workers for one; pickle would lose the keyword.
        return _again, (type(self), self.message, self.remedy)


class ConfigurationError(StreamworkerError):
    """The program or its settings are wrong; nothing was started."""


class JavaMissing(ConfigurationError):
    """Spark needs a Java runtime, and none fits."""


class RecordError(StreamworkerError):
    """A record cannot be encoded, routed or turned into Arrow."""


class DecodeError(RecordError):
    """An entry does not hold a record of its stream's type."""


class ProducerError(StreamworkerError):
    """A send did not happen, or its outcome is unknown."""


class StreamFull(ProducerError):
    """A partition is at its limit because a group is behind; nothing was written."""


class CoordinationError(StreamworkerError):
    """The group's view and this worker's view differ."""


class BackendError(StreamworkerError):
    """Redis did not do what it was asked."""


class BackendUnavailable(BackendError):
    """No answer from Redis: what was asked may or may not have been done."""


class BackendRefused(BackendError):
    """Redis answered no: out of memory, read-only, no permission, wrong type."""


class AuthenticationFailed(BackendError):
    """Redis did not accept the user or password."""


class DataLoss(StreamworkerError):
    """Rows of an acked log that a reader counts on are gone or were replaced."""


class ProcessingError(StreamworkerError):
    """A processor function failed and its error policy is to stop."""


class InternalError(StreamworkerError):
    """This should never happen. Please report it with the log."""

    def __init__(self, message: str) -> None:
        super().__init__(message, remedy="This is a bug in streamworker; please report it with the log.")


def _again(kind: type[StreamworkerError], message: str, remedy: str) -> StreamworkerError:
    error = kind.__new__(kind, message, remedy)
    StreamworkerError.__init__(error, message, remedy=remedy)
    return error
