"""What is done about an error, by its type, after so many attempts."""

from typing import Any

import pytest

from streamworker import ConfigurationError, DeadLetter, DecodeError, Halt, Policy, Retry, Skip
from streamworker.core.pauses import pause_ms
from streamworker.core.policies import Policies
from streamworker.errors import ProcessDied, RecordError


class Refused(ConnectionError):
    """A special case of it."""


def kind(policy: Policy) -> type[Policy]:
    return type(policy)


def test_without_a_word_every_error_is_retried_for_ever_and_what_is_no_record_is_a_dead_letter() -> None:
    """After a million attempts, too; an entry that cannot be decoded had no attempt at all."""
    policies = Policies()
    assert kind(policies.after(ValueError(), 1_000_000)) is Retry
    assert kind(policies.after(DecodeError("no"), 0)) is DeadLetter
    assert kind(policies.after(KeyError("its key cannot be told"), 0)) is DeadLetter


def test_the_nearest_class_wins_whatever_the_order() -> None:
    """As for ``except`` with the classes sorted; what nobody names is retried for ever."""
    pairs: list[tuple[type[Exception], Policy]] = [
        (OSError, Skip()),
        (Refused, Halt()),
        (ConnectionError, DeadLetter()),
    ]
    for given in (dict(pairs), dict(reversed(pairs))):
        policies = Policies(given)
        found = [
            policies.after(error, 1) for error in (Refused(), ConnectionResetError(), OSError(), KeyError())
        ]
        assert [*map(kind, found)] == [Halt, DeadLetter, Skip, Retry]


def test_attempts_count_the_first_call_and_without_then_the_partition_halts() -> None:
    """``attempts=3`` are three calls in all."""
    policies = Policies({ValueError: Retry(attempts=3, then=Skip()), Exception: Retry(attempts=1)})
    assert [kind(policies.after(ValueError(), count)) for count in (1, 2, 3, 4)] == [Retry, Retry, Skip, Skip]
    assert kind(policies.after(KeyError(), 1)) is Halt


@pytest.mark.parametrize("errors", [Retry(), Halt(), {Exception: Skip()}])
def test_only_decode_error_itself_names_what_cannot_be_decoded(errors: Any) -> None:
    """A policy for all errors must not retry for ever what cannot heal."""
    assert kind(Policies(errors).after(DecodeError("no"), 0)) is DeadLetter
    assert kind(Policies({DecodeError: Halt()}).after(DecodeError("no"), 0)) is Halt


def test_a_policy_that_was_raised_comes_before_the_mapping() -> None:
    """Also one of a subclass, and a retry with its own limit."""

    class Unwanted(Skip):
        """A reason that the program has a name for."""

    policies = Policies({Exception: Halt()})
    assert kind(policies.after(Unwanted("a test order"), 1)) is Unwanted
    again = Retry(attempts=2, then=DeadLetter())
    assert [kind(policies.after(again, count)) for count in (1, 2)] == [Retry, DeadLetter]


@pytest.mark.parametrize(
    ("errors", "attempts", "then"),
    [
        (None, 1, Halt),
        (Retry(), 1, Halt),
        ({ValueError: Skip()}, 1, Halt),
        (DeadLetter(), 1, DeadLetter),
        (Retry(attempts=3, then=DeadLetter()), 3, DeadLetter),
        ({Exception: Retry(attempts=3, then=Skip())}, 3, Skip),
        ({Exception: Skip(), ProcessDied: DeadLetter()}, 1, DeadLetter),
        ({ProcessDied: Retry(attempts=9, then=Skip())}, 9, Skip),
        ({ProcessDied: Retry()}, None, Halt),
    ],
)
def test_a_record_that_kills_its_process_halts_unless_a_policy_says_otherwise(
    errors: Any, attempts: int | None, then: type[Policy]
) -> None:
    """The policy for `ProcessDied`; else that of all errors, if it has an end."""
    policies = Policies(errors)
    assert policies.attempts_of(ProcessDied) == attempts
    assert kind(policies.after(ProcessDied("died"), 0)) is then


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"then": DeadLetter()}, "no attempts=: it never gives up"),
        ({"attempts": 0}, "attempts=0"),
        ({"attempts": 2.0}, "attempts=2.0"),
        ({"attempts": 2, "then": Retry()}, r"then=Retry\(\)"),
        ({"attempts": 2, "then": DeadLetter}, "then=<class"),
        ({"backoff": "soon"}, "backoff='soon' is no duration"),
        ({"backoff_max": -1}, "backoff_max=-1"),
        ({"backoff": 0, "backoff_max": 0}, "backoff_max=0 is too short"),
        ({"backoff": "2 minutes"}, "backoff='2 minutes', which is above backoff_max=60"),
    ],
)
def test_a_retry_that_makes_no_sense_is_refused_at_import(given: dict[str, Any], said: str) -> None:
    """With what is wrong and what to write."""
    with pytest.raises(ConfigurationError, match=said):
        Retry(**given)


def test_a_policy_shows_itself_as_it_is_written() -> None:
    """In messages and in the log."""
    assert (
        repr(Retry(attempts=5, then=Skip("no such thing"))) == "Retry(attempts=5, then=Skip('no such thing'))"
    )
    assert repr(Retry()) == "Retry()"
    slow = Retry(attempts=5, backoff="1 second", backoff_max=90)
    assert repr(slow) == str(slow) == "Retry(attempts=5, backoff='1 second', backoff_max=90)"


def test_a_backoff_of_nothing_grows_too() -> None:
    """Else a record that fails would be called, and logged, as fast as a processor can."""
    retry = Retry(backoff=0)
    pauses = [
        pause_ms(n, lambda: 0.0, first_ms=retry.backoff_ms, max_ms=retry.backoff_max_ms) for n in range(1, 40)
    ]
    assert pauses[:4] == [1, 1, 2, 4] and pauses[-1] == 30_000


def _group(*errors: Exception) -> Exception:
    return ExceptionGroup("both", [ExceptionGroup("inner", [errors[0]]), *errors[1:]])


@pytest.mark.parametrize(
    ("errors", "error", "expected"),
    [
        ({ConnectionError: Halt()}, _group(Refused()), Halt),
        ({ConnectionError: Halt(), OSError: Skip()}, _group(Refused(), ConnectionError()), Halt),
        ({ConnectionError: Halt(), KeyError: Halt()}, _group(Refused(), KeyError()), Halt),
        ({ConnectionError: Halt(), KeyError: Skip()}, _group(Refused(), KeyError()), Retry),
        ({ConnectionError: Halt()}, _group(Refused(), ValueError()), Retry),
        ({ConnectionError: Halt()}, _group(Halt("by itself"), Refused()), Halt),
        ({ConnectionError: Halt(), ExceptionGroup: Skip()}, _group(Refused()), Skip),
        (DeadLetter(), _group(Refused(), ValueError()), DeadLetter),
        (None, _group(RecordError("no")), DeadLetter),
        (None, _group(Refused(), ValueError()), Retry),
    ],
)
def test_a_group_of_errors_has_the_policy_of_its_leaves_if_they_have_one(
    errors: Any, error: Exception, expected: type[Policy]
) -> None:
    """A mapping that names the group itself comes first; leaves that differ leave it an error of its own."""
    assert kind(Policies(errors).after(error, 1)) is expected
