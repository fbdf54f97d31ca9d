"""What settings and arguments may be: their types by annotations, and rules between settings as a table.

What checks them and what documents them read the same lines.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar, Union, get_args, get_origin

from streamworker.core.text import storable
from streamworker.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")
Limits: TypeAlias = tuple[int, int]
"""The least and the largest number that are allowed."""
NUMBER_MAX = 10**12
"""As milliseconds 31 years, which all clocks and timers can count; as bytes a terabyte."""
ANY_NUMBER = (1, NUMBER_MAX)
CHECKED: "dict[str, dict[str, Kind]]" = {}
"""What the arguments of each public function take, for the docs and the tests."""
_PLAIN: dict[Any, str] = {bool: "True or False", str: "text", type(None): "None"}
UNIONS = (Union, type(int | str))
"""The origins of ``Union[int, str]`` and of ``int | str``."""


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


class Kind(NamedTuple):
    """What a setting or an argument takes."""

    annotation: Any
    words: str = ""
    """Empty for what is checked elsewhere."""
    takes: Callable[[Any], bool] = lambda _: True


def kind_of(annotation: Any, limits: Limits = ANY_NUMBER) -> Kind:
    """Return what an annotation stands for: True is no number, nor are nan, 2.0 and "2".

    >>> kind_of(int | None).words, kind_of(Literal["key", "none"]).words, kind_of(int, (1, 99)).takes(100)
    ('a whole number from 1 to 10**12, or None', 'one of: key, none', False)
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is int:
        words = f"a whole number from {limits[0]} to {'10**12' if limits[1] == NUMBER_MAX else limits[1]}"
        return Kind(annotation, words, lambda value: type(value) is int and limits[0] <= value <= limits[1])
    if annotation in _PLAIN:
        return Kind(annotation, _PLAIN[annotation], lambda value: isinstance(value, annotation))
    if origin is Literal:
        return Kind(annotation, f"one of: {', '.join(map(str, args))}", lambda value: value in args)
    if origin in UNIONS:
        kinds = [kind_of(each, limits) for each in args]
        words = ", or ".join(each.words for each in kinds) if all(each.words for each in kinds) else ""
        return Kind(annotation, words, lambda value: any(each.takes(value) for each in kinds))
    if isinstance(origin, type):
        return Kind(annotation, f"a {origin.__name__}", lambda value: isinstance(value, origin))
    return Kind(annotation)


def check_values(values: Mapping[str, Any], kinds: Mapping[str, Kind], whose: str = "") -> None:
    """Check settings, or what somebody's arguments are; raise ConfigurationError that names a wrong one."""
    for name, kind in kinds.items():
        if name in values and not kind.takes(values[name]):
            value = storable(values[name], repr)
            what = f"{whose} has {name}={value}." if whose else f"Setting {name} is {value}."
            raise ConfigurationError(what, remedy=f"Use {kind.words}.")


def keep_kinds(what: str, annotations: Mapping[str, Any], **limits: Limits) -> None:
    """Keep what the arguments of a public function take, for ``check_arguments``, the docs and the tests."""
    CHECKED[what] = {name: kind_of(hint, limits.get(name, ANY_NUMBER)) for name, hint in annotations.items()}


def check_arguments(what: str, given: Mapping[str, Any]) -> None:
    """Check what a public function was given by the kinds that were kept.

    An error says ``what`` has a wrong one, with its name or that of the function.
    """
    name = given.get("name") or getattr(given.get("function"), "__name__", None)
    check_values(given, CHECKED[what], f"{what} {name!r}" if isinstance(name, str) else what)


def checked(what: str, **limits: Limits) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have the arguments of a public function checked by their annotations before it runs."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        keep_kinds(what, {k: v for k, v in function.__annotations__.items() if k != "return"}, **limits)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            check_arguments(what, {**dict(zip(names, args, strict=False)), **kwargs})
            return function(*args, **kwargs)

        return call

    return decorate
