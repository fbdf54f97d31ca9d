"""Rules between settings, as a table: what checks settings and what documents them read the same lines."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from streamworker.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Rule:
    """A setting is at least, or more than, some times another one; the setting's own text gives the reason.

    >>> str(Rule("dead_after_ms", ">=", 2, "heartbeat_interval_ms"))
    'dead_after_ms >= 2 x heartbeat_interval_ms'
    """

    name: str
    relation: Literal[">=", ">"]
    factor: int
    other: str
    unless: tuple[str, str] | None = None
    """A setting and the value of it with which the rule does not apply."""

    def __str__(self) -> str:
        times = f"{self.factor} x " if self.factor > 1 else ""
        return f"{self.name} {self.relation} {times}{self.other}"

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise ConfigurationError if the rule applies to these settings and does not hold."""
        if self.unless is not None and values[self.unless[0]] == self.unless[1]:
            return
        mine, theirs = values[self.name], values[self.other]
        least = self.factor * theirs + (self.relation == ">")
        if mine < least:
            raise ConfigurationError(
                f"Setting {self.name} is {mine}, and must be {str(self).partition(' ')[2]} ({theirs}).",
                remedy=f"Raise {self.name} to {least} or more, or lower {self.other}.",
            )


def check_numbers(
    values: Mapping[str, Any], may_be_zero: Collection[str] = (), at_most: Mapping[str, int] | None = None
) -> None:
    """Check that each whole number is greater than 0, or 0 where it may be, and not too large.

    Raise ConfigurationError with the setting's name if one is not.
    """
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if value < 0 or (value == 0 and name not in may_be_zero):
            least = "0 or more" if name in may_be_zero else "greater than 0"
            raise ConfigurationError(f"Setting {name} is {value}.", remedy=f"It must be {least}.")
        most = (at_most or {}).get(name, value)
        if value > most:
            raise ConfigurationError(f"Setting {name} is {value}.", remedy=f"It must be {most} at most.")


def check_rules(values: Mapping[str, Any], rules: Iterable[Rule]) -> None:
    """Check all rules; raise ConfigurationError with the names of both settings if one does not hold."""
    for rule in rules:
        rule.check(values)
