"""Policies: what is done about a record whose handling fails.

``@app.processor(..., errors=)`` takes one policy, or a mapping from exception types to policies. A function
that handles one record may also raise a policy about it.
"""

from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

from streamworker.core.rules import checked
from streamworker.core.text import storable
from streamworker.core.units import Duration, duration_ms
from streamworker.errors import ConfigurationError, DecodeError, ProcessDied, ProcessingError, RecordError


class Policy(Exception):
    """What is done about a record whose handling fails: ``Retry``, ``DeadLetter``, ``Skip`` or ``Halt``.

    ``errors=`` of a processor takes one, or a mapping from exception types to policies. A function of one
    record may raise one about that record, which comes before the mapping.

    Parameters
    ----------
    reason
        Why, for the log, the dead letter or the halted partition; it may be empty.

    Examples
    --------
    >>> def price(sku: str, catalogue: dict[str, float]) -> float:
    ...     if sku not in catalogue:
    ...         raise Skip(f"there is no {sku!r}")
    ...     return catalogue[sku]
    >>> price("tea", {})
    Traceback (most recent call last):
    ...
    streamworker.core.policies.Skip: there is no 'tea'
    """

    def __init__(self, reason: str = "") -> None:
        self.reason: str = storable(reason)
        """Why it was raised; it may be empty."""
        super().__init__(self.reason)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason!r})" if self.reason else f"{type(self).__name__}()"


class DeadLetter(Policy):
    """The record goes to the dead letters, with its error; the others go on in order.

    The letter is stored with the commit of the records beside it, and stays until ``streamworker dead
    replay`` or ``dead drop`` removes it.

    Parameters
    ----------
    reason
        Why, for the letter.

    Examples
    --------
    >>> errors = {ValueError: DeadLetter(), TimeoutError: Retry(attempts=5, then=DeadLetter())}
    """


class Skip(Policy):
    """The record is logged and passed over; the others go on in order.

    Nothing else keeps the record: the log line ``record_skipped`` names its entry.

    Parameters
    ----------
    reason
        Why, for the log.

    Examples
    --------
    >>> errors = {LookupError: Skip()}
    """


class Halt(Policy):
    """The partition stops at the record and reports it; the other partitions go on.

    What came before the record is committed. The partition stands until ``streamworker retry``, through
    restarts and rebalances.

    Parameters
    ----------
    reason
        Why, for ``status`` and the log.

    Examples
    --------
    >>> errors = {ZeroDivisionError: Halt()}
    """


class Retry(Policy):
    """The function is called again, with exponential backoff and jitter; the order is kept.

    Records after it in the partition wait; with ``concurrency`` only those of its key. The wait ends at once
    when the partition drains. Without ``attempts`` nothing is written for a retry; with it, each further call
    is first counted in the partition's lock, so that the next owner of the partition goes on counting.

    Parameters
    ----------
    attempts
        How many calls there may be, the first included, whichever workers make them. None has no limit.
    backoff
        The pause before the second call: seconds, or a text such as ``"1 second"``. It doubles with each
        further one. Each pause is drawn from its upper half. 0 begins with a millisecond, which doubles, too.
    backoff_max
        The longest pause, likewise.
    then
        What is done after the last attempt: ``DeadLetter()``, ``Skip()`` or ``Halt()``; None halts.

    Raises
    ------
    ConfigurationError
        If ``then`` is given without ``attempts``, ``backoff`` is above ``backoff_max``, or one is invalid.

    Examples
    --------
    >>> from streamworker import DeadLetter, Retry
    >>> Retry(attempts=5, backoff="1 second", then=DeadLetter())
    Retry(attempts=5, backoff='1 second', then=DeadLetter())
    """

    @checked("Retry")
    def __init__(
        self,
        *,
        attempts: int | None = None,
        backoff: Duration = 0.2,
        backoff_max: Duration = 60,
        then: Policy | None = None,
    ) -> None:
        super().__init__()
        if then is not None and attempts is None:
            raise ConfigurationError(
                f"Retry has then={then!r} and no attempts=: it never gives up.",
                remedy="Say after how many calls: Retry(attempts=5, then=DeadLetter()).",
            )
        if not isinstance(then, DeadLetter | Skip | Halt | None):
            raise ConfigurationError(
                f"Retry has then={then!r}.", remedy="Use DeadLetter(), Skip() or Halt()."
            )
        self.attempts = attempts
        self.backoff_ms: int = max(1, duration_ms(backoff, "backoff"))
        """The pause before the second call, in milliseconds."""
        self.backoff_max_ms: int = duration_ms(backoff_max, "backoff_max", least_ms=1)
        """The longest pause, in milliseconds."""
        if self.backoff_ms > self.backoff_max_ms:
            raise ConfigurationError(
                f"Retry has backoff={backoff!r}, which is above backoff_max={backoff_max!r}.",
                remedy="Raise backoff_max, or lower backoff.",
            )
        self.then = then or Halt()
        given = {"attempts": attempts, "backoff": backoff, "backoff_max": backoff_max, "then": then}
        defaults = (None, 0.2, 60, None)
        said = zip(given.items(), defaults, strict=True)
        self._told = ", ".join(f"{name}={value!r}" for (name, value), default in said if value != default)

    def __repr__(self) -> str:
        return f"Retry({self._told})"

    __str__ = __repr__


class Late(DeadLetter):
    """What is done about a record that comes when all of its windows are over.

    >>> Late("late by 3.0 s", is_kept=True).reason
    'late by 3.0 s'
    """

    def __init__(self, reason: str, *, is_kept: bool) -> None:
        super().__init__(reason)
        self.is_kept = is_kept
        """Whether it becomes a dead letter; it went to a stream of its own otherwise."""


CHOICES = (Retry, DeadLetter, Skip, Halt)


class ErrorMap(Protocol):
    """A mapping from exception types to policies, such as a ``dict``."""

    def items(self) -> Iterable[tuple[type[Exception], Policy]]:
        """Return the types and their policies."""
        ...


Errors: TypeAlias = Policy | ErrorMap
"""What ``errors=`` takes: one policy for all errors, or policies by type, the nearest class winning."""


class Policies:
    """The policies of one processor.

    An error that no policy names is retried for ever. An entry that cannot be decoded cannot heal, so it goes
    to the dead letters unless the mapping names ``DecodeError``. Where the policy of all errors has no end, a
    record with rows that fit no log goes there, too, unless the mapping names ``RecordError``, and one that
    kills its process halts its partition, unless it names ``ProcessDied``. ``errors`` that are neither a
    policy nor a mapping from exception types to policies raise ConfigurationError.
    """

    def __init__(self, errors: Errors | None = None) -> None:
        if errors is None or isinstance(errors, Policy):
            by_type: Iterable[tuple[Any, Any]] = [(Exception, errors or Retry())]
        elif not hasattr(errors, "items"):
            raise ConfigurationError(
                f"errors={errors!r} is no policy.",
                remedy="Use Retry(), DeadLetter(), Skip() or Halt(), or {TimeoutError: Retry()}.",
            )
        else:
            by_type = errors.items()
        self._plans: list[tuple[type[Exception], Retry]] = [(DecodeError, _plan(DeadLetter()))]
        for kind, policy in by_type:
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise ConfigurationError(
                    f"errors= has the key {kind!r}.",
                    remedy="Use types of exceptions: {TimeoutError: Retry()}.",
                )
            if issubclass(kind, (StopIteration, StopAsyncIteration)):
                raise ConfigurationError(
                    f"errors= has the key {kind!r}, which reaches no policy.",
                    remedy="Name RuntimeError: a worker makes one of what no coroutine can raise.",
                )
            if not isinstance(policy, CHOICES):
                raise ConfigurationError(
                    f"errors= has {policy!r} for {kind.__name__}.",
                    remedy="Use Retry(), DeadLetter(), Skip() or Halt().",
                )
            if kind is DecodeError and isinstance(policy, Retry):
                raise ConfigurationError(
                    "errors= retries DecodeError, and an entry that holds no record never will.",
                    remedy="Use DeadLetter(), Skip() or Halt() for it.",
                )
            self._plans.insert(0, (kind, _plan(policy)))
        self._plans.append((Exception, Retry()))
        for its, policy in ((RecordError, DeadLetter()), (ProcessDied, Halt())):
            if self.attempts_of(its) is None and all(named is not its for named, _ in self._plans):
                self._plans.append((its, _plan(policy)))

    def after(self, error: Exception, attempts: int) -> Policy:
        """Return what to do about a record after so many failed calls: a ``Retry`` is another call.

        Without a call, the entry could not be decoded, whatever raised the error; or it killed its owners.
        """
        if not attempts:
            return self._plan_of(type(error) if isinstance(error, ProcessingError) else DecodeError).then
        plan = self._plan_for(error)
        return plan if plan.attempts is None or attempts < plan.attempts else plan.then

    def _plan_for(self, error: BaseException) -> Retry:
        """Return the plan of an error; that of a group is the one of its leaves, if they have one."""
        if isinstance(error, CHOICES):
            return _plan(error)
        own = self._plan_of(type(error))
        if not isinstance(error, ExceptionGroup) or any(named is ExceptionGroup for named, _ in self._plans):
            return own
        first, *others = [self._plan_for(leaf) for leaf in leaves(error)]
        return first if all(_terms(plan) == _terms(first) for plan in others) else own

    def attempts_of(self, kind: type[Exception]) -> int | None:
        """Return how many calls there are for errors of a type; None if there is no limit."""
        return self._plan_of(kind).attempts

    def _plan_of(self, kind: type[BaseException]) -> Retry:
        # Classes are compared by identity: a metaclass of somebody may define equality and hashes.
        mro = type.__dict__["__mro__"].__get__(kind)
        return next(plan for base in mro for named, plan in self._plans if named is base)


def _plan(policy: Policy) -> Retry:
    """Return a policy as attempts and what follows them."""
    return policy if isinstance(policy, Retry) else Retry(attempts=1, then=policy)


def _terms(plan: Retry) -> tuple[object, ...]:
    """Return what two plans have in common if they are one policy, whatever their reasons."""
    return plan.attempts, plan.backoff_ms, plan.backoff_max_ms, type(plan.then)


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors in a group and in the groups within it, in order; of any other error, itself.

    >>> leaves(ExceptionGroup("", [ValueError(1), ExceptionGroup("", [KeyError(2)])]))
    [ValueError(1), KeyError(2)]
    """
    found: list[BaseException] = []
    left = [error]
    while left:
        if isinstance(each := left.pop(), BaseExceptionGroup):
            # A subclass of somebody may have an attribute of its own.
            left += reversed(BaseExceptionGroup.__dict__["exceptions"].__get__(each))
        else:
            found.append(each)
    return found
