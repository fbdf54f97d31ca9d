"""Renders docs/cli.md from the commands themselves; docs/generate.py writes it."""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import get_args

import typer
from typer.models import ArgumentInfo, OptionInfo

from streamworker.cli.exit_codes import MEANINGS, ExitCode

INTRODUCTION = """\
# The command line

<!-- Made by `make docs` from the commands; edit those, not this. A test compares them. -->

`streamworker --help` says in a sentence what each command does, `streamworker COMMAND --help` the same as this page.

**Paths.** An app is named as uvicorn does it: `shop:app` is the attribute `app` of the module `shop`, looked for in
the current folder first; `shop:orders` is a stream, processor, table or timer, by its name or its function.

**Settings** come from the app and from [variables](settings.md). While `streamworker dev` runs, what it starts uses its
server whatever the app names. Other commands in this folder, and programs whose app names no Redis, find that server by
the file `.streamworker-dev.json`, and say so.

**Output.** What was asked for goes to stdout, everything else to stderr; tables are plain text where there is no
terminal. Commands that list something take `--json`.

**Errors.** What is wrong, and what to do, are two sentences on stderr. A Python traceback means a bug.
"""


HEAD = "| argument | means |\n|---|---|"


@dataclass(frozen=True, slots=True)
class Command:
    """One command, as it was registered."""

    path: str
    function: Callable[..., object]

    @property
    def paragraphs(self) -> list[str]:
        """The help text."""
        return inspect.cleandoc(self.function.__doc__ or "").split("\n\n")


def render() -> str:
    """Return the text of docs/cli.md."""
    from streamworker.cli.root import app

    commands = list(_commands(app, ""))
    links = (f"[`{each.path}`](#streamworker-{each.path.replace(' ', '-')})" for each in commands)
    contents = ["## Commands", "", ",\n".join(links) + "."]
    codes = ["## Exit codes", "", "| code | means |", "|---|---|"]
    codes += [f"| {code.value} | {MEANINGS[code]} |" for code in ExitCode]
    times = Counter(row for command in commands for row in _rows(command))
    shared = {row for row, count in times.items() if count > 2}
    common = ["## Arguments of several commands", "", HEAD, *sorted(shared)]
    sections = [line for command in commands for line in _section(command, shared)]
    return "\n".join([INTRODUCTION, *contents, "", *codes, "", *common, "", *sections]).rstrip() + "\n"


def _commands(group: typer.Typer, prefix: str) -> Iterator[Command]:
    for info in group.registered_commands:
        if info.callback is not None:
            yield Command(prefix + (info.name or info.callback.__name__), info.callback)
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            yield from _commands(inner.typer_instance, f"{inner.name} ")


def _section(command: Command, shared: set[str]) -> Iterator[str]:
    yield f"## streamworker {command.path}"
    yield ""
    for paragraph in command.paragraphs:
        if paragraph.startswith("\b"):
            # The examples: a mark for typer, a heading, then one command a line.
            yield "```sh"
            yield from (line.strip() for line in paragraph.splitlines()[2:])
            yield "```"
        else:
            yield paragraph
        yield ""
    rows = _rows(command)
    if own := [row for row in rows if row not in shared]:
        yield from (HEAD, *own, "")
    if others := [re.split(r"[, ]", row.split("`")[1])[0] for row in rows if row in shared]:
        named = ", ".join(f"`{name}`" for name in others).replace("\\|", "|")
        yield from (f"{'And' if own else 'Takes'} [{named}](#arguments-of-several-commands).", "")


def _rows(command: Command) -> list[str]:
    parameters = inspect.signature(command.function).parameters.values()
    # What is not annotated with an option or argument, a typer.Context, is not the user's to give.
    return [_row(parameter) for parameter in parameters if get_args(parameter.annotation)]


def _row(parameter: inspect.Parameter) -> str:
    """Return the line for one argument or option."""
    kind, *extras = get_args(parameter.annotation)
    info = next(extra for extra in extras if isinstance(extra, OptionInfo | ArgumentInfo))
    text = info.help or ""
    if isinstance(info, ArgumentInfo):
        return _line(info.metavar or parameter.name.upper(), text)
    default = getattr(parameter.default, "value", parameter.default)
    # Beside Annotated, typer takes the first name for the place of the default.
    names = ", ".join(name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str))
    if kind is bool:
        return _line(names, text)
    value = info.metavar or "TEXT"
    if isinstance(kind, type) and issubclass(kind, Enum):
        value = "|".join(str(choice.value) for choice in kind)
    if parameter.default is inspect.Parameter.empty:
        text += " Required."
    elif default not in (None, ""):
        text += f" Default: `{default}`."
    return _line(f"{names} {value}", text)


def _line(label: str, text: str) -> str:
    escaped = label.replace("|", "\\|")
    return f"| `{escaped}` | {text} |"
