"""The membership protocol as a choice of ``App(coordination=...)``, and its rules for moving load."""

from dataclasses import dataclass
from typing import ClassVar

from streamworker.core.protocols.settings import Coordination


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDocument(Coordination):
    """One document says who is there and who should own what.

    It is the default, so its settings are those of ``streamworker.Settings``.
    """

    name: ClassVar[str] = "membership"


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceRules:
    """The rules of ``weighted``; ``Settings`` gives the reasons for the values."""

    interval_ms: int = 5_000
    threshold_percent: int = 20
    looks: int = 3
    damping_percent: int = 50
    moves_per_minute: int = 10
