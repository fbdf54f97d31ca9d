"""The membership protocol as a choice of ``App(coordination=...)``, its time spans, and who a worker is."""

from dataclasses import dataclass
from typing import ClassVar

from streamworker.core.protocols.settings import Coordination


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDocument(Coordination):
    """One document says who is there and who should own what.

    It is the default, so its settings are those of ``streamworker.Settings``.
    """

    name: ClassVar[str] = "membership"


@dataclass(frozen=True, slots=True)
class Identity:
    """How a worker appears to others."""

    name: str
    host: str
    pid: int
    static_id: str = ""
    """The id under which the worker returns after a restart; empty if its membership is not held."""
    capacity: int = 1
    """How much load it can carry, relative to the other workers of its group."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The time spans of the protocol; ``Settings`` gives the reasons for the values."""

    heartbeat_interval_ms: int = 1_000
    dead_after_ms: int = 2_000
    session_timeout_ms: int = 10_000
    slow_after_ms: int = 30_000
    grace_period_ms: int = 8_000
    acquire_retry_ms: int = 200
    hold_ms: int = 30_000
    founding_pause_ms: int = 80
