"""Marks of what was sent, and what a target's answer means."""

import pytest

from streamworker.core.data.outbox import (
    START,
    Message,
    OutboxPosition,
    OutboxQueue,
    Standing,
    Target,
    standing_of,
)

TO = Target("priced", 0)
A, B, C, D = (OutboxPosition(n, digest) for n, digest in enumerate(("aa", "bb", "cc", "dd"), 1))
X, Y = OutboxPosition(7, "ee"), OutboxPosition(8, "ff")
CHAIN = [
    Message(number, TO, since, through, b"")
    for number, (since, through) in enumerate([(A, B), (B, C), (C, D), (X, Y)])
]
"""Between the last two a message is missing, which the target took and the source deleted."""


@pytest.mark.parametrize(
    ("stands", "expected"),
    [
        pytest.param(A, (Standing.GOES_ON, 0), id="it has none of them"),
        pytest.param(C, (Standing.GOES_ON, 2), id="it has two of them"),
        pytest.param(D, (Standing.GOES_ON, 3), id="it has all"),
        pytest.param(X, (Standing.GOES_ON, 3), id="it has all before a message behind a gap"),
        pytest.param(START, (Standing.TARGET_WENT_BACK, 0), id="it has lost all that was confirmed"),
        pytest.param(
            OutboxPosition(2, "xx"), (Standing.DIVERGED, 0), id="it has others under a number of theirs"
        ),
        pytest.param(OutboxPosition(9, "xx"), (Standing.DIVERGED, 3), id="it has more than was ever sent"),
        pytest.param(
            OutboxPosition(6, "xx"), (Standing.TARGET_WENT_BACK, 3), id="it has lost some of what is missing"
        ),
        pytest.param(
            OutboxPosition(1, "xx"), (Standing.DIVERGED, 0), id="it has others up to where they begin"
        ),
    ],
)
def test_an_answer_tells_which_of_the_two_went_back(
    stands: OutboxPosition, expected: tuple[Standing, int]
) -> None:
    """What the source still has for the target begins behind all that the target has confirmed."""
    assert standing_of(stands, CHAIN) == expected


def test_what_is_committed_while_a_queue_is_compared_stays_in_it() -> None:
    """The outbox was read before, so the message is not among those that were found."""
    queue = OutboxQueue(TO)
    for message in CHAIN[:3]:
        queue.put(message)
    assert queue.compared(B, CHAIN[:2], None, through=1) == ([CHAIN[0].id], Standing.GOES_ON)
    assert [*queue.messages] == CHAIN[1:3]


def test_what_is_committed_between_head_and_messages_stays_in_the_queue() -> None:
    """A failover brought the first message back. The target stands at the head, which was read before."""
    queue = OutboxQueue(TO)
    for message in (CHAIN[0], CHAIN[2]):
        queue.put(message)
    found = [CHAIN[0], CHAIN[2]]
    assert queue.compared(C, found, C, through=1) == ([CHAIN[0].id], Standing.GOES_ON)
    assert [*queue.messages] == [CHAIN[2]]


def test_a_mark_depends_on_the_whole_history() -> None:
    """The same message after another history leads elsewhere, and so does another message."""
    one, other = START.after(1, b"a"), START.after(1, b"b")
    assert one != other
    assert one.after(1, b"x") != other.after(1, b"x")
    assert START.after(1, b"a") == one
    assert START.after(2, b"a") != one


@pytest.mark.parametrize("text", ["priced", "priced/x", ""])
def test_what_names_no_target_is_refused(text: str) -> None:
    """Another program wrote it."""
    with pytest.raises(ValueError, match="invalid literal"):
        Target.parse(text)
