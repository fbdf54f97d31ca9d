"""The command line's arguments and options: those that commands share, and how each is declared."""

from typing import Annotated, Any

import typer

from streamworker.core.units import duration_ms
from streamworker.errors import ConfigurationError


def argument(metavar: str, help: str) -> Any:
    """Declare an argument."""
    return typer.Argument(metavar=metavar, help=help)


def option(usage: str, help: str, **limits: Any) -> Any:
    """Declare an option by its usage: its names and the placeholder of its value, as ``--limit -n N``."""
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    return typer.Option(*names, metavar=" ".join(words[len(names) :]) or None, help=help, **limits)


def seconds_of(text: str, hint: str) -> float:
    """Return the duration that an option gives, in seconds; refuse text that is none."""
    try:
        return duration_ms(text, hint) / 1000
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


AppPath = Annotated[str, argument("APP", "MODULE:ATTRIBUTE of the App, such as shop:app.")]
GroupPath = Annotated[
    str, argument("APP|PROCESSOR", "MODULE:ATTRIBUTE of the App, or of one of its processors.")
]
ProcessorPath = Annotated[
    str, argument("PROCESSOR", "MODULE:NAME of the processor, such as shop:price; or an App that has one.")
]
Processors = Annotated[
    list[str] | None, option("--processor -p NAME", "Only this processor; may be given several times.")
]
Partitions = Annotated[
    list[int] | None, option("--partition N", "Only this partition; may be given several times.")
]
Limit = Annotated[int, option("--limit -n N", "At most this many.", min=1)]
Yes = Annotated[bool, option("--yes -y", "Do not ask.")]
AsJson = Annotated[bool, option("--json", "Print JSON, for programs.")]
