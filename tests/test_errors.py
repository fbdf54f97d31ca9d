"""Errors name what is wrong and what to do, also in another process."""

import pickle

import pytest

from streamworker import errors
from streamworker.errors import InternalError, StreamworkerError

KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StreamworkerError)
]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not InternalError])
def test_an_error_says_the_same_after_it_crossed_to_another_process(kind: type[StreamworkerError]) -> None:
    """Type, message and remedy survive pickling."""
    error = kind("The stream is full.", remedy="Start a worker.")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == "The stream is full. Start a worker."
    assert again.remedy == "Start a worker."


def test_a_broken_invariant_says_that_it_is_our_bug() -> None:
    """And asks for a report."""
    error = pickle.loads(pickle.dumps(InternalError("A lock has two owners.")))
    assert str(error).startswith("A lock has two owners. This is a bug in streamworker")


def test_the_tree_in_the_docstring_names_every_error() -> None:
    """The drawing at the head of the module is complete."""
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in KINDS)
