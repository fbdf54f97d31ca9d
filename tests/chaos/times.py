"""Settings of workers for tests: times that a test can wait for, for each protocol."""

import os

FAST = {
    "STREAMWORKER_HEARTBEAT_INTERVAL_MS": "200",
    "STREAMWORKER_CALL_TIMEOUT_MS": "500",
    "STREAMWORKER_DEAD_AFTER_MS": "600",
    "STREAMWORKER_SESSION_TIMEOUT_MS": "1500",
    "STREAMWORKER_SLOW_AFTER_MS": "2000",
    "STREAMWORKER_GRACE_PERIOD_MS": "2000",
    "STREAMWORKER_DRAIN_DEADLINE_MS": "3000",
}
"""Times short enough for tests that wait for them; the relations are those of the defaults."""
STEADY = {name: str(3 * int(value)) for name, value in FAST.items()}
"""Three times as long, for tests in which nobody may be thought dead who lives, on a machine that may be busy
with other work: where a process stands still for half a second, nobody answers in half a second."""
CLAIM = {
    **FAST,
    "COORDINATION": "claim",
    "STREAMWORKER_CLAIM_CYCLE_MS": "200",
    "STREAMWORKER_CLAIM_EXPIRY_MS": "1500",
}
LEASE = {
    **FAST,
    "COORDINATION": "lease",
    "STREAMWORKER_LEASE_NORMAL_MS": "1500",
    "STREAMWORKER_LEASE_MAX_MS": "5000",
    "STREAMWORKER_LEASE_MAX_SHUTDOWN_MS": "2000",
    "STREAMWORKER_LEASE_MIN_GRAB_MS": "1000",
}


def slack_for_this_machine() -> float:
    """Return the seconds that a machine of few cores may take longer than is promised."""
    return 0.5 if (os.cpu_count() or 1) < 4 else 0.2
