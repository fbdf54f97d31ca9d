"""Settings: every number that a user can turn, why it is what it is, and what it must satisfy.

Each can be given to ``App(...)`` by name or by an environment variable
``STREAMWORKER_<NAME>``; an argument wins over the environment.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from streamworker.errors import ConfigurationError
from streamworker.urls import PLAINTEXT_VARIABLE, refuse_plaintext

ENV_PREFIX = "STREAMWORKER_"
_SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
DURABILITIES = ("memory", "aof", "replicas")
MAY_BE_ZERO = frozenset({"founding_pause_ms"})
"""Settings that 0 turns off; any other number must be greater."""
CAPACITY_MAX = 1_000
"""Beyond this it is no proportion between machines but a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one application; checked when they are made.

    Raises
    ------
    ConfigurationError
        Naming the setting and the inequality that does not hold.
    """

    # -- connection --------------------------------------------------------------------------
    redis_url: str = field(default="redis://localhost:6379/0", repr=False)
    """Where Redis is. ``redis://``, ``rediss://`` (TLS) or ``unix://`` for one server;
    ``redis+sentinel://`` or ``rediss+sentinel://`` for the primary that sentinels name
    (docs/sentinel.md); ``redis+cluster://`` or ``rediss+cluster://`` for a Cluster
    (docs/clusters.md). Never logged."""
    allow_plaintext: bool = False
    """Whether ``redis://`` may leave this machine. Without TLS whoever is on the way reads and changes
    passwords and records, so another host is refused unless you say that the network is trusted."""
    call_timeout_ms: int = 2_500
    """Deadline of one call to Redis. Below ``session_timeout_ms / 3``, so that a worker can
    miss one call and still renew in time."""

    # -- durability --------------------------------------------------------------------------
    durability: str = "memory"
    """How safe a send or a commit must be before it counts. ``memory``: Redis has it. ``aof``: it is
    on the server's disk. ``replicas``: it is at ``durability_replicas`` replicas. docs/durability.md
    says what each survives, and what it asks of the server."""
    durability_replicas: int = 1
    """How many replicas must have it, with ``durability="replicas"``."""
    durability_timeout_ms: int = 2_000
    """How long one wait for the disk or for replicas takes at most. What is not confirmed by then is
    sent again, and is confirmed to nobody until it is. Longer than the second of ``everysec``."""
    appendfsync_always: bool = False
    """Say that the server has ``appendfsync always``, where ``durability="aof"`` needs that and this
    user may not ask for it (``CONFIG GET``)."""

    # -- liveness ----------------------------------------------------------------------------
    heartbeat_interval_ms: int = 1_000
    """One command a worker and group at this pace."""
    dead_after_ms: int = 2_000
    """A silent member whose connection is gone is removed after this long. At least two
    heartbeats: one may be late."""
    session_timeout_ms: int = 10_000
    """A silent member is removed after this long where the server does not tell whether its
    connection lives (CLIENT LIST forbidden, or a server that restarted)."""
    slow_after_ms: int = 30_000
    """A silent member whose connection lives is slow, not dead: removed only after this long."""

    # -- places of static members ------------------------------------------------------------
    static_id: str = ""
    """A name under which this worker comes back after a restart, for instance its number in a
    set of pods. Its partitions then wait for it. Each worker needs one of its own: set it in the
    worker's environment or by ``run --static-id``. Empty: its place is not kept."""
    hold_ms: int = 30_000
    """How long the place of a static member that left or died is kept; nobody works on its
    partitions meanwhile. Longer than a restart takes."""

    # -- handover ----------------------------------------------------------------------------
    founding_pause_ms: int = 80
    """How long a worker waits before it takes partitions in a group that began a moment ago: others
    are about to join, and would be given most of them. 0: not at all. Paid once, when an app starts."""
    grace_period_ms: int = 8_000
    """How long a revoked partition may take to finish the batch in hand before its handler is
    cancelled."""
    drain_deadline_ms: int = 12_000
    """How long the next owner waits, by the server's clock, for one that does not release.
    Longer than the grace period, so that a healthy owner is never overtaken."""
    acquire_retry_ms: int = 200
    """Pause before a lock that was held is tried again without having been told."""
    shutdown_timeout_ms: int = 30_000
    """A worker that was told to stop ends by now, whatever its handlers do; then with a
    non-zero exit code. Longer than the grace period."""

    # -- sharing by load (assignment="weighted") -----------------------------------------------
    capacity: int = 1
    """What this worker can carry, beside the others of its group: one with 2 is given about twice
    the load of one with 1. Set it in the worker's environment where machines differ."""
    balance_interval_ms: int = 5_000
    """How often load is measured and looked at. A look costs a worker one round trip. Longer than
    a heartbeat, which carries it, and than most batches, so that a look sees several."""
    balance_threshold_percent: int = 20
    """Only a worker that stands so much above the mean gives partitions away, and only if whoever
    takes one then stands lower than the giver did by as much. The larger, the less moves; up to
    about half of it may be noise without any harm. Less than 100."""
    balance_looks: int = 3
    """In so many looks in a row it must have been too much: a burst moves nothing."""
    balance_damping_percent: int = 50
    """The part of what is too much that one step may move: the next step sees what it led to. At
    most 100."""
    balance_moves_per_minute: int = 10
    """The most partitions of a group that load moves in a minute, whatever it does."""

    # -- handover by claims (coordination="claim") --------------------------------------------
    claim_cycle_ms: int = 1_000
    """A worker renews its claims, and claims at most one partition more, once in this time. The
    shorter, the sooner load is balanced, and the more calls: three or four a worker and cycle."""
    claim_expiry_ms: int = 10_000
    """A claim that was not renewed for this long is nobody's. At least two cycles and three calls,
    so that one that fails loses nothing; the rest is how long a worker may be slow. A dead one is
    noticed no sooner."""

    # -- handover by races (coordination="lease") ---------------------------------------------
    lease_normal_ms: int = 5_000
    """How long a partition is held, as a rule, before it is challenged: the pace at which load
    is balanced. The author of the algorithm uses 60,000; each challenge costs each worker one
    call, and 5 seconds are long beside the wait of a race and short for who watches."""
    lease_max_ms: int = 20_000
    """How long a challenge may stay undecided before it is cleared away: a worker that died
    between winning and starting is noticed after this. Significantly longer than the normal
    lease, and than a shutdown, which is waited for while nothing may be challenged."""
    lease_max_shutdown_ms: int = 10_000
    """How long the winner waits for the former owner's shutdown before it starts anyway; its
    lock then refuses the former owner's commits. At least the grace period, so that a healthy
    owner is never overtaken."""
    lease_min_grab_ms: int = 4_000
    """How long after its start a winner cannot be challenged. Less than the normal lease, and
    long enough for every worker's wait to be over."""
    lease_held_delay_ms: int = 100
    """How much longer a worker waits for each partition that it has, before it tries to take a
    challenged one. The author uses 100 to 500. Shorter, and jitter decides instead of load; it
    is shortened for streams of more than ``lease_min_grab_ms / lease_held_delay_ms`` partitions."""

    # -- data --------------------------------------------------------------------------------
    prefetch_bytes: int = 32 * 1024 * 1024
    """Bytes that one processor may hold fetched but not committed, over all its partitions."""
    fetch_count: int = 1_000
    """Entries that one read may bring for one partition."""
    fetch_block_ms: int = 2_000
    """How long a read waits at the server for new entries before it asks again."""
    entry_bytes_max: int = 1024 * 1024
    """The largest record that ``send`` takes. Redis holds it in memory, and so do workers."""
    partition_entries_max: int = 1_000_000
    """Entries in one partition at which ``send`` waits or raises ``StreamFull``; nothing
    unread is ever dropped."""
    acked_entries_max: int = 100_000
    """Entries in one acked log at which commits wait for its readers."""
    trim_interval_ms: int = 2_000
    """How often an owner drops what every group and every reader is past."""

    # -- handlers ----------------------------------------------------------------------------
    max_processing_time_ms: int = 300_000
    """A handler that makes no progress for this long raises an alarm; it loses nothing by it."""
    stalled_after_ms: int = 30_000
    """A partition that has entries and commits none for this long is named in the log and in
    ``status``, with what it waits for. It loses nothing by it. Longer than an ordinary batch takes."""
    handler_threads: int = 16
    """Threads for ``def`` processors of one worker process; calls of theirs that overlap
    (``concurrency``) are bounded by it too."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, int) and not isinstance(value, bool):
                self._check_least(spec.name, value)
        if self.durability not in DURABILITIES:
            raise ConfigurationError(
                f"Setting durability is {self.durability!r}.",
                remedy=f"It must be one of: {', '.join(DURABILITIES)}.",
            )
        if self.durability != "memory":
            # The last commit of a partition that is given away must have the time to be confirmed.
            self._require("grace_period_ms", ">=", 1, "durability_timeout_ms")
        if not self.allow_plaintext:
            refuse_plaintext(self.redis_url, "The URL of Redis")
        self._require("dead_after_ms", ">=", 2, "heartbeat_interval_ms")
        self._require("session_timeout_ms", ">=", 3, "heartbeat_interval_ms")
        self._require("session_timeout_ms", ">=", 3, "call_timeout_ms")
        self._require("slow_after_ms", ">=", 1, "session_timeout_ms")
        self._require("session_timeout_ms", ">=", 1, "dead_after_ms")
        self._require("drain_deadline_ms", ">=", 1, "grace_period_ms")
        self._require("shutdown_timeout_ms", ">=", 1, "grace_period_ms")
        self._require("balance_interval_ms", ">=", 1, "heartbeat_interval_ms")
        self._require("heartbeat_interval_ms", ">=", 1, "founding_pause_ms")
        self._limit("balance_threshold_percent", 99)
        self._limit("balance_damping_percent", 100)
        self._limit("capacity", CAPACITY_MAX)
        self._require("claim_expiry_ms", ">=", 2, "claim_cycle_ms")
        self._require("claim_expiry_ms", ">=", 3, "call_timeout_ms")
        self._require("prefetch_bytes", ">=", 2, "entry_bytes_max")
        self._require("lease_max_ms", ">=", 2, "lease_normal_ms")
        self._require("lease_max_ms", ">=", 2, "lease_max_shutdown_ms")
        self._require("lease_max_shutdown_ms", ">=", 1, "grace_period_ms")
        self._require("lease_normal_ms", ">", 1, "lease_min_grab_ms")
        self._require("lease_min_grab_ms", ">=", 2, "lease_held_delay_ms")

    @staticmethod
    def _check_least(name: str, value: int) -> None:
        if value < 0 or (value == 0 and name not in MAY_BE_ZERO):
            least = "0 or more" if name in MAY_BE_ZERO else "greater than 0"
            raise ConfigurationError(f"Setting {name} is {value}.", remedy=f"It must be {least}.")

    def _require(self, name: str, relation: str, factor: int, other: str) -> None:
        """Check ``name >= factor * other``, or ``>``; the reason stands at the setting itself."""
        mine, theirs = getattr(self, name), getattr(self, other)
        least = factor * theirs + (relation == ">")
        if mine < least:
            times = f"{factor} x " if factor > 1 else ""
            raise ConfigurationError(
                f"Setting {name} is {mine}, and must be {relation} {times}{other} ({theirs}).",
                remedy=f"Raise {name} to {least} or more, or lower {other}.",
            )

    def _limit(self, name: str, most: int) -> None:
        if (value := getattr(self, name)) > most:
            raise ConfigurationError(f"Setting {name} is {value}.", remedy=f"It must be {most} at most.")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **given: Any) -> Self:
        """Make settings from ``STREAMWORKER_*`` variables; arguments that are not None win.

        Raises
        ------
        ConfigurationError
            For a variable that is not of its setting's type.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for spec in fields(cls):
            text = environ.get(ENV_PREFIX + spec.name.upper())
            if given.get(spec.name) is not None:
                values[spec.name] = given[spec.name]
            elif text is not None:
                values[spec.name] = _read(spec.name, text, spec.default)
        unknown = sorted(set(given) - {spec.name for spec in fields(cls)})
        if unknown:
            raise ConfigurationError(
                f"There is no setting {unknown[0]!r}.",
                remedy="docs/settings.md lists them.",
            )
        return cls(**values)


def plaintext_allowed(environ: Mapping[str, str]) -> bool:
    """Return what the environment says of plain text."""
    return bool(_read("allow_plaintext", environ.get(PLAINTEXT_VARIABLE, "0"), default=False))


def _read(name: str, text: str, default: object) -> object:
    if isinstance(default, bool):
        if text.lower() not in _SWITCH:
            raise ConfigurationError(f"{ENV_PREFIX}{name.upper()} is {text!r}.", remedy="It must be 1 or 0.")
        return _SWITCH[text.lower()]
    if not isinstance(default, int):
        return text
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise ConfigurationError(
            f"{ENV_PREFIX}{name.upper()} is {text!r}.", remedy="It must be a whole number."
        ) from None
