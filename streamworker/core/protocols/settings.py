"""The base of each protocol's settings: what ``App(coordination=...)`` takes."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from streamworker.core.rules import Rule, check_values, kind_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination:
    """A rebalance protocol, with the settings that only it reads.

    A setting has the protocol's name before its own everywhere but in the constructor: ``x_pace_ms`` is the
    ``pace_ms`` of the protocol ``x``. If a rule between two of these settings does not hold, this raises
    ConfigurationError; ``Settings`` checks the rules that also name settings of others.
    """

    name: ClassVar[str]
    """By which ``App(coordination=...)`` and ``STREAMWORKER_COORDINATION`` choose the protocol."""
    RULES: ClassVar[tuple[Rule, ...]] = ()

    def __post_init__(self) -> None:
        values = self.values()
        check_values(values, {f"{self.name}_{each.name}": kind_of(each.type) for each in fields(self)})
        for rule in self.RULES:
            if {rule.name, rule.other} <= values.keys():
                rule.check(values)

    def __str__(self) -> str:
        return self.name

    def values(self) -> dict[str, Any]:
        """Return the settings by their whole names."""
        return {f"{self.name}_{field.name}": getattr(self, field.name) for field in fields(self)}
