"""Settings: their defaults, the reasons for these, and the inequalities that they must satisfy.

A setting is an argument of ``App(...)`` or an environment variable ``STREAMWORKER_<NAME>``; the argument
takes precedence over the environment. What only a protocol other than the default reads is in that protocol's
folder (``Coordination``).
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal, Self, TypeVar

from streamworker.core.protocols.registry import DEFAULT, PROTOCOLS, entry_of
from streamworker.core.protocols.settings import Coordination
from streamworker.core.rules import ANY_NUMBER, NUMBER_MAX, Limits, Rule, check_values, kind_of
from streamworker.errors import ConfigurationError, did_you_mean
from streamworker.urls import Credentials, check_url
from streamworker.variables import CONNECTION_VARIABLE, ENV_PREFIX, OTHER_VARIABLES, provider_of, read_value

T = TypeVar("T")

LIMITS: Mapping[str, Limits] = {
    "founding_pause_ms": (0, NUMBER_MAX),
    "balance_threshold_percent": (1, 99),
    "balance_damping_percent": (1, 100),
    "capacity": (1, 1_000),  # a larger ratio between machines is probably a mistake
}
"""The least and the largest value of some settings; those of all others are ``ANY_NUMBER``."""
RULES = (
    # The last commit before a partition is released must have time to be confirmed.
    Rule("grace_period_ms", ">=", 1, "durability_timeout_ms", unless=("durability", "memory")),
    Rule("dead_after_ms", ">=", 2, "heartbeat_interval_ms"),
    Rule("session_timeout_ms", ">=", 3, "heartbeat_interval_ms"),
    Rule("session_timeout_ms", ">=", 3, "call_timeout_ms"),
    Rule("slow_after_ms", ">=", 1, "session_timeout_ms"),
    Rule("session_timeout_ms", ">=", 1, "dead_after_ms"),
    Rule("drain_deadline_ms", ">=", 1, "grace_period_ms"),
    Rule("shutdown_timeout_ms", ">=", 1, "grace_period_ms"),
    Rule("balance_interval_ms", ">=", 1, "heartbeat_interval_ms"),
    Rule("heartbeat_interval_ms", ">=", 1, "founding_pause_ms"),
    Rule("prefetch_bytes", ">=", 2, "entry_bytes_max"),
)
"""What must hold between settings. A protocol has such a table of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one application; checked when they are made.

    ``App`` makes them from its arguments and the environment: ``App("shop", hold_ms=60_000)``.

    Raises
    ------
    ConfigurationError
        If a value has another type, or an inequality does not hold; the error names the setting and the
        inequality.

    Examples
    --------
    >>> Settings.from_env({"STREAMWORKER_HOLD_MS": "60000"}, trim_interval_ms=5_000).hold_ms
    60000
    """

    # -- connection --------------------------------------------------------------------------
    redis_url: str = field(default="redis://localhost:6379/0", repr=False)
    """Where Redis is, never logged: ``redis://``, ``rediss://`` (TLS) or ``unix://``;
    ``redis+sentinel://`` or ``rediss+sentinel://`` (docs: sentinel); ``redis+cluster://`` or
    ``rediss+cluster://`` (docs: clusters)."""
    allow_plaintext: bool = False
    """Whether ``redis://`` may leave this machine, over a network that you trust (docs: security)."""
    credential_provider: Any = None
    """A ``redis.credentials.CredentialProvider``, or ``module:name`` of one, for tokens that expire
    (docs: security)."""
    call_timeout_ms: int = 2_500
    """Deadline of one call to Redis. Below ``session_timeout_ms / 3``, so that a worker can
    miss one call and still renew in time."""

    # -- durability --------------------------------------------------------------------------
    durability: Literal["memory", "aof", "replicas"] = "memory"
    """Where a send or a commit must be before it counts: in Redis' ``memory``, on its disk (``aof``), or at
    ``replicas`` (docs: durability)."""
    durability_replicas: int = 1
    """How many replicas must have it, with ``replicas``."""
    durability_timeout_ms: int = 2_000
    """How long one wait for the disk or for replicas takes at most. What is not confirmed by then is
    sent again. Longer than the second of ``everysec``."""
    appendfsync_always: bool = False
    """Say that the server has ``appendfsync always``, where this user may not ask (``CONFIG GET``)."""

    # -- who shares partitions how -----------------------------------------------------------
    coordination: Coordination = DEFAULT
    """[The protocol](protocols.md) by which workers share partitions: its name, or one with its own
    settings. A variable names it."""

    # -- liveness ----------------------------------------------------------------------------
    heartbeat_interval_ms: int = 1_000
    """One command a worker and group at this pace."""
    dead_after_ms: int = 2_000
    """A silent member whose connection is gone is removed after this long. One heartbeat may be late."""
    session_timeout_ms: int = 10_000
    """A silent member is removed after this long where the server does not tell whether its
    connection lives (CLIENT LIST forbidden, or a server that restarted)."""
    slow_after_ms: int = 30_000
    """A silent member whose connection lives is slow, not dead: removed only after this long."""

    # -- seats of static members ------------------------------------------------------------
    static_id: str = ""
    """A name under which this worker, and no other, comes back after a restart to its partitions, which
    wait for it. Set it in the worker's environment or by ``run --static-id``. Empty: its seat is not
    kept."""
    hold_ms: int = 30_000
    """How long the seat of a static member that left or died is kept; nobody works on its
    partitions meanwhile. Longer than a restart takes."""

    # -- handover ----------------------------------------------------------------------------
    founding_pause_ms: int = 80
    """How long a worker waits before it takes partitions in a group that began a moment ago, since others
    are about to join. 0: not at all."""
    grace_period_ms: int = 8_000
    """How long a revoked partition may take to finish the batch in hand before its handler is
    cancelled."""
    drain_deadline_ms: int = 12_000
    """How long the next owner waits, by the server's clock, for one that does not release. A healthy
    owner is never overtaken."""
    acquire_retry_ms: int = 200
    """Pause before a lock that was held is tried again without having been told."""
    shutdown_timeout_ms: int = 30_000
    """A worker that was told to stop ends after this long, whatever its handlers do, with exit code 5."""

    # -- sharing by load (assignment="weighted") -----------------------------------------------
    capacity: int = 1
    """What this worker can carry: one with 2 is given about twice the load of one with 1. Set it in the
    worker's environment."""
    balance_interval_ms: int = 5_000
    """How often load is measured, for one round trip of a worker. Longer than most batches."""
    balance_threshold_percent: int = 20
    """Only a worker so much above the mean gives partitions away, and only if whoever takes one then
    stands lower than the giver did by as much. Noise of up to about half of it does no harm."""
    balance_looks: int = 3
    """In so many looks in a row it must have been too much: a burst moves nothing."""
    balance_damping_percent: int = 50
    """The part of what is too much that one step may move."""
    balance_moves_per_minute: int = 10
    """The most partitions of a group that load moves in a minute."""

    # -- data --------------------------------------------------------------------------------
    prefetch_bytes: int = 32 * 1024 * 1024
    """Bytes that one processor may hold fetched but not committed, over all its partitions."""
    table_cache_bytes: int = 64 * 1024 * 1024
    """Bytes of tables that one processor may keep in a worker, over all its partitions."""
    fetch_count: int = 1_000
    """Entries that one read may bring for one partition."""
    fetch_block_ms: int = 2_000
    """How long a read waits at the server for new entries before it asks again."""
    entry_bytes_max: int = 1024 * 1024
    """The largest record that ``send`` takes."""
    partition_records_max: int = 1_000_000
    """Records in one partition that a group has not read, at which ``send`` waits or raises ``StreamFull``;
    nothing unread is ever dropped."""
    acked_entries_max: int = 100_000
    """Entries in one acked log that a reader has not read, at which commits wait. Of a log without readers
    the oldest go instead."""
    outbox_messages_max: int = 10_000
    """Messages for other streams in one partition's outbox at which commits wait. A commit makes one or
    more for each partition that it sends to."""
    trim_interval_ms: int = 2_000
    """How often an owner drops what every group and every reader has committed."""

    # -- handlers ----------------------------------------------------------------------------
    max_processing_time_ms: int = 30_000
    """A partition that has entries and commits none for this long is named in the log and in ``status``,
    with what it waits for. Longer than an ordinary batch takes."""
    tracing: bool = False
    """Whether sends and calls make spans of OpenTelemetry (docs: tracing)."""
    handler_threads: int = 16
    """Threads for ``def`` processors of one worker process, also for overlapping calls (``concurrency``)."""

    def __post_init__(self) -> None:
        values = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        kinds = {each.name: kind_of(each.type, LIMITS.get(each.name, ANY_NUMBER)) for each in fields(self)}
        check_values(values, kinds)
        check_url(self.redis_url, "The URL of Redis", allow_plaintext=self.allow_plaintext)
        provider_of(self.credential_provider, importing=False)
        values |= self.coordination.values()
        for rule in (*RULES, *self.coordination.RULES):
            rule.check(values)

    @property
    def credentials(self) -> Credentials | None:
        """The provider of user and password, imported if it is named."""
        return provider_of(self.credential_provider)

    def part(self, kind: type[T], prefix: str = "") -> T:
        """Return those settings that are the fields of another class, whose names may lack a prefix."""
        return kind(**{spec.name: getattr(self, prefix + spec.name) for spec in fields(kind)})  # type: ignore[arg-type]

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **given: Any) -> Self:
        """Make settings from ``STREAMWORKER_*`` variables; arguments that are not None take precedence.

        A protocol that is named gets its own settings from arguments and variables, too. One that is given
        with its settings has them all.

        Parameters
        ----------
        environ
            The variables; those of the process if None.
        **given
            Settings by their names.

        Raises
        ------
        ConfigurationError
            If a variable does not have its setting's type, or an argument is no setting.
        """
        environ = os.environ if environ is None else environ
        _warn_of_misspelt(environ)
        values = _values_of(cls, environ, given)
        known = {spec.name for spec in fields(cls)}
        if not isinstance(chosen := values.get("coordination", DEFAULT.name), Coordination):
            kind = entry_of(chosen).settings
            values["coordination"] = kind(**_values_of(kind, environ, given, f"{kind.name}_"))
            known |= _own_names()
        for name in sorted(set(given) - known):
            raise ConfigurationError(
                f"There is no setting {name!r}.",
                remedy=f"{did_you_mean(name, known)}`help(streamworker.Settings)` lists them.",
            )
        return cls(**values)


def _values_of(
    kind: type[Any], environ: Mapping[str, str], given: Mapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """Return what arguments and variables say about the fields of a class of settings."""
    values: dict[str, Any] = {}
    for spec in fields(kind):
        name = prefix + spec.name
        text = environ.get(ENV_PREFIX + name.upper())
        if given.get(name) is not None:
            values[spec.name] = given[name]
        elif text is not None:
            values[spec.name] = read_value(name, text, spec.type)
    return values


def _own_names() -> set[str]:
    """Return the settings that only one protocol reads, of all protocols."""
    return {name for entry in PROTOCOLS.values() for name in entry.settings().values()}


def _warn_of_misspelt(environ: Mapping[str, str]) -> None:
    """Warn of misspelt variables; others are not ours, such as Kubernetes' ..._SERVICE_HOST."""
    names = {spec.name for spec in fields(Settings)} | _own_names()
    ours = {ENV_PREFIX + name.upper() for name in names} | OTHER_VARIABLES.keys()
    for name in sorted(environ.keys() - ours):
        if name.startswith(ENV_PREFIX) and not name.startswith(CONNECTION_VARIABLE):
            for near in get_close_matches(name, ours, n=1, cutoff=0.82):
                said = f"The variable {name} sets nothing. Is {near} meant?"
                warnings.warn(said, RuntimeWarning, stacklevel=2)
