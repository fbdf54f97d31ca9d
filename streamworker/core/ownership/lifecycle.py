"""The states of one partition at one worker, and the transitions between them.

``TRANSITIONS`` lists every change of a partition's state, and nothing else changes a state; docs/protocol.md
shows it. A trigger that it does not list for a state is a bug in streamworker: it
raises ``InternalError``, which no code catches.

Two sources decide about a partition, and they may disagree. The *assignment* says which member should own it:
ASSIGNED and REVOKED come from the assignment. The *lock* says which member does own it: GRANTED, REFUSED and
FENCED come from the lock. A worker handles records only in RUNNING and DRAINING, and a partition reaches both
only through GRANTED.

A call to Redis takes time, and the assignment may change meanwhile. So a state says whether a call is under
way: WAITING has none, ACQUIRING has one. A partition that is revoked while the worker acquires it changes to
WITHDRAWING: Redis may still grant the lock, and then the worker has to release it. The worker repeats a call
that got no answer (FAILED); acquire and release are idempotent. A withdrawing partition also asks again: only
an answer tells which epoch to release.

DRAINING never returns to RUNNING. A partition that is assigned again while it drains finishes, is released,
and is acquired anew with a new epoch. There is one way in and one way out.

An operator's request (pause, resume, retry, put) stands in the lock. The worker obeys each in one way: it
finishes the batch in hand (STOPPING), and asks for the lock again; the answer says what the operator wants
now. A lock with a standing pause is granted like any other, and leads to PAUSED, where no runner exists.

FENCED means that another worker holds the lock, so this worker does not release it.
"""

from enum import Enum

from streamworker.errors import InternalError


class State(Enum):
    """The state of a partition at this worker."""

    IDLE = "idle"
    """Not assigned to this worker, and no call is under way."""
    WAITING = "waiting"
    """Assigned to this worker, which acquires it when its last owner releases it, or after a pause."""
    ACQUIRING = "acquiring"
    """Assigned to this worker, which asked for the lock. It may hold the lock without knowing, if the answer
    was lost."""
    WITHDRAWING = "withdrawing"
    """No longer assigned to this worker, which still waits for the answer about the lock."""
    RUNNING = "running"
    """This worker holds the lock and handles records."""
    STOPPING = "stopping"
    """An operator made a request: the worker finishes and commits the batch in hand, and then asks for the
    lock again."""
    PAUSED = "paused"
    """This worker holds the lock, and handles nothing until an operator resumes the partition."""
    HALTED = "halted"
    """This worker holds the lock, and the handler's error policy stopped the partition."""
    DRAINING = "draining"
    """Revoked: the worker finishes and commits the batch in hand and starts nothing new."""
    RELEASING = "releasing"
    """Drained; the worker is releasing the lock."""


class Trigger(Enum):
    """An event that changes the state of a partition at this worker."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    ASKED = "asked"
    """The worker asked for the lock."""
    GRANTED = "granted"
    PAUSED = "paused"
    """The lock was granted, and an operator's pause stands in it."""
    REQUESTED = "requested"
    """An operator made a request that this worker has not obeyed yet."""
    REFUSED = "refused"
    """Another worker holds the lock, or this worker's view of the group is old."""
    FAILED = "failed"
    """A call got no answer: Redis may or may not have executed it."""
    HALTED = "halted"
    STOPPED = "stopped"
    """The runner has stopped: it drained, or it was cancelled after the grace period."""
    FENCED = "fenced"
    RELEASED = "released"


_S, _T = State, Trigger

TRANSITIONS: dict[State, dict[Trigger, State]] = {
    _S.IDLE: {
        _T.ASSIGNED: _S.WAITING,
    },
    _S.WAITING: {
        _T.ASKED: _S.ACQUIRING,
        _T.REVOKED: _S.IDLE,
    },
    _S.ACQUIRING: {
        _T.GRANTED: _S.RUNNING,
        _T.PAUSED: _S.PAUSED,
        _T.REFUSED: _S.WAITING,
        _T.FAILED: _S.ACQUIRING,
        _T.REVOKED: _S.WITHDRAWING,
    },
    _S.WITHDRAWING: {
        _T.GRANTED: _S.RELEASING,
        _T.PAUSED: _S.RELEASING,
        _T.REFUSED: _S.IDLE,
        _T.FAILED: _S.WITHDRAWING,
        _T.ASSIGNED: _S.ACQUIRING,
    },
    _S.RUNNING: {
        _T.REVOKED: _S.DRAINING,
        _T.REQUESTED: _S.STOPPING,
        _T.HALTED: _S.HALTED,
        _T.FENCED: _S.WAITING,
    },
    _S.HALTED: {
        _T.HALTED: _S.HALTED,
        _T.REVOKED: _S.DRAINING,
        _T.REQUESTED: _S.STOPPING,
        _T.FENCED: _S.WAITING,
    },
    _S.STOPPING: {
        _T.HALTED: _S.STOPPING,
        _T.REVOKED: _S.DRAINING,
        _T.STOPPED: _S.ACQUIRING,
        _T.FENCED: _S.WAITING,
    },
    _S.PAUSED: {
        _T.REVOKED: _S.RELEASING,
        _T.REQUESTED: _S.ACQUIRING,
    },
    _S.DRAINING: {
        _T.HALTED: _S.DRAINING,
        _T.STOPPED: _S.RELEASING,
        _T.FENCED: _S.IDLE,
    },
    _S.RELEASING: {
        _T.RELEASED: _S.IDLE,
        _T.FAILED: _S.RELEASING,
    },
}

HANDLING = frozenset({State.RUNNING, State.HALTED, State.STOPPING, State.DRAINING})
"""States in which a runner exists."""


def step(state: State, trigger: Trigger) -> State:
    """Return the next state; raise InternalError if the table has no such transition."""
    after = TRANSITIONS[state].get(trigger)
    if after is None:
        raise InternalError(f"A partition that is {state.value} cannot be {trigger.value}.")
    return after


def as_table() -> str:
    """Return the transitions in Markdown, for docs/protocol.md."""
    lines = ["| state | what happens, and the state after it |", "|---|---|"]
    for state, row in TRANSITIONS.items():
        after = ", ".join(f"{trigger.value} → `{then.value}`" for trigger, then in row.items())
        lines.append(f"| `{state.value}` | {after} |")
    return "\n".join(lines)
