"""The result of a ``doctor`` check: a verdict, what was found, and the remedy if it is not ok."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""
