"""Errors name what is wrong and what to do, also in another process."""

import pickle
import re

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


@pytest.mark.parametrize(
    ("text", "ends"), [("It is full.", "full."), ("It is full", "full."), ("and so on...", "on....")]
)
def test_an_error_that_ends_with_a_text_of_others_has_one_full_stop(text: str, ends: str) -> None:
    """Servers and exceptions end their texts with a full stop, or do not."""
    error = StreamworkerError(f"Redis refused: {text}.", remedy="Make room.")
    assert str(error).endswith(f"{ends} Make room.") and error.message.endswith(ends)


def test_a_broken_invariant_says_that_it_is_our_bug() -> None:
    """And asks for a report."""
    error = pickle.loads(pickle.dumps(InternalError("A lock has two owners.")))
    assert str(error).startswith("A lock has two owners. This is a bug in streamworker")


def test_the_tree_in_the_docstring_is_that_of_the_classes() -> None:
    """Each class stands once, below its base; and no class is drawn that does not exist."""
    drawn: dict[str, str] = {}
    above: list[str] = []
    for branch, name in re.findall(r"^    ([│├└─ ]*)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE):
        above[len(branch) // 4 :] = [name]
        assert name not in drawn
        drawn[name] = above[-2] if branch else "Exception"
    assert drawn == {kind.__name__: kind.__base__.__name__ for kind in KINDS if kind.__base__}
