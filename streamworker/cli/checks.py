"""What ``doctor`` answers: one line a check, each with what to do where it is not ok."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One answer."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""
