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


def ok(name: str, found: str) -> Check:
    """Return the result of a check that found no problem."""
    return Check(name, "ok", found)


def warn(name: str, found: str, remedy: str) -> Check:
    """Return the result of a check that found a possible problem."""
    return Check(name, "warn", found, remedy)


def fail(name: str, found: str, remedy: str) -> Check:
    """Return the result of a check that found a problem; ``doctor`` exits with 1."""
    return Check(name, "fail", found, remedy)
