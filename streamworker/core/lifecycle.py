"""The life of one partition at one worker.

Rules of this file
------------------
1. Every change of a partition's state stands in ``TRANSITIONS``, and nothing else changes one.
   The diagram in docs/protocol.md is drawn from this table.
2. A trigger that the table does not list for a state is a bug of ours. It raises
   ``InternalError``, which nobody catches.

Theory of operation
-------------------
Two things decide over a partition and they are not the same. The *assignment* says who should
own it: ASSIGNED and REVOKED come from there. The *lock* says who does: GRANTED, REFUSED and
FENCED come from there. A worker handles records only in RUNNING and DRAINING, and both are
entered by way of GRANTED alone.

A call to Redis takes time, and the assignment may change meanwhile. So a state says whether
a call is under way: WAITING has none, ACQUIRING has one. A partition that is revoked while it is
being acquired goes to WITHDRAWING: the answer may still be yes, and then the lock has to be
given back. A call without an answer (FAILED) is repeated; acquire and release are idempotent.
A withdrawing partition asks again, too: only an answer tells which epoch is to be released.

DRAINING never goes back to RUNNING. A partition that is assigned again while it drains
finishes, is released, and is acquired anew, with a new epoch: one road in, one road out.

FENCED means that somebody else has the lock. The partition is not released then: it is
not ours to release.
"""

from enum import Enum

from streamworker.errors import InternalError


class State(Enum):
    """Where a partition is in its life at this worker."""

    IDLE = "idle"
    """Not ours, and nothing under way."""
    WAITING = "waiting"
    """Assigned to us; to be acquired when its last owner releases, or after a pause."""
    ACQUIRING = "acquiring"
    """Assigned to us; the lock was asked for. It may be ours without our knowing, if the answer was lost."""
    WITHDRAWING = "withdrawing"
    """No longer assigned to us, while the answer about the lock is not there yet."""
    RUNNING = "running"
    """The lock is ours, and records are handled."""
    HALTED = "halted"
    """The lock is ours, and the handler's error policy stopped the partition."""
    DRAINING = "draining"
    """Revoked: the batch in hand is finished and committed, nothing new is started."""
    RELEASING = "releasing"
    """Drained; the lock is being released."""


class Trigger(Enum):
    """What can happen to a partition at this worker."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    ASKED = "asked"
    """The lock was asked for."""
    GRANTED = "granted"
    REFUSED = "refused"
    """Somebody else holds the lock, or our view of the group is old."""
    FAILED = "failed"
    """A call got no answer: it may or may not have been done."""
    HALTED = "halted"
    STOPPED = "stopped"
    """The runner has stopped: drained, or cancelled after the grace period."""
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
        _T.REFUSED: _S.WAITING,
        _T.FAILED: _S.ACQUIRING,
        _T.REVOKED: _S.WITHDRAWING,
    },
    _S.WITHDRAWING: {
        _T.GRANTED: _S.RELEASING,
        _T.REFUSED: _S.IDLE,
        _T.FAILED: _S.WITHDRAWING,
        _T.ASSIGNED: _S.ACQUIRING,
    },
    _S.RUNNING: {
        _T.REVOKED: _S.DRAINING,
        _T.HALTED: _S.HALTED,
        _T.FENCED: _S.WAITING,
    },
    _S.HALTED: {
        _T.HALTED: _S.HALTED,
        _T.REVOKED: _S.DRAINING,
        _T.FENCED: _S.WAITING,
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

HANDLING = frozenset({State.RUNNING, State.HALTED, State.DRAINING})
"""States in which a runner exists."""


def step(state: State, trigger: Trigger) -> State:
    """Return the next state.

    Raises
    ------
    InternalError
        If the table has no such transition. The caller's state is unchanged.
    """
    after = TRANSITIONS[state].get(trigger)
    if after is None:
        raise InternalError(f"A partition that is {state.value} cannot be {trigger.value}.")
    return after


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for docs/protocol.md."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.IDLE.value}"]
    for state, row in TRANSITIONS.items():
        lines += [f"    {state.value} --> {after.value}: {trigger.value}" for trigger, after in row.items()]
    return "\n".join(lines)
