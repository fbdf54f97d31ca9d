"""Help texts, their examples, and the page made from them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer

from docs import reference
from streamworker.cli.exit_codes import MEANINGS, ExitCode
from streamworker.cli.root import app
from tests.cli.conftest import Invoke

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
COMMANDS = [command.path for command in reference._commands(app, "")]


def test_the_page_is_current() -> None:
    """Else: make docs."""
    assert PAGE.read_text(encoding="utf-8") == reference.render()


def test_every_command_has_help_with_examples(invoke: Invoke) -> None:
    """The page has all help texts, and a command prints its own: what somebody new looks for first."""
    text = PAGE.read_text(encoding="utf-8")
    for command in COMMANDS:
        section = text.split(f"## streamworker {command}\n")[1].split("\n## ")[0]
        assert f"```sh\nstreamworker {command}" in section, command
    for arguments in ("run", "dead list"):
        result = invoke.does(*arguments.split(), "--help")
        assert f"Examples:\n    streamworker {arguments}" in result


def test_every_example_names_options_that_exist() -> None:
    """An example that fails is worse than none."""
    text = PAGE.read_text(encoding="utf-8")
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line.split("|")[-1] if "| streamworker" in line else line.split("|")[0])
            command = next(each for each in COMMANDS if each in (words[1], " ".join(words[1:3])))
            section = text.split(f"## streamworker {command}\n")[1].split("\n## ")[0]
            for option in (word for word in words if word.startswith("--")):
                assert f"{option}" in section.rpartition("```")[2], line


def test_an_option_that_may_be_repeated_in_one_command_may_be_in_all() -> None:
    """Elsewhere the last one would count, in silence; so too what the app declares by name."""
    found: dict[str, set[bool]] = {}

    def walk(command: Any) -> None:
        for option in command.params:
            if option.param_type_name == "option":
                found.setdefault(option.opts[0], set()).add(option.multiple)
        for inner in getattr(command, "commands", {}).values():
            walk(inner)

    walk(typer.main.get_command(app))
    assert not [name for name, repeats in found.items() if len(repeats) > 1]
    assert all(found[name] == {True} for name in ("--pipeline", "--processor", "--partition", "--forget"))


def test_every_exit_code_is_documented() -> None:
    """The table is the module's."""
    text = PAGE.read_text(encoding="utf-8")
    assert set(MEANINGS) == set(ExitCode)
    for code in ExitCode:
        assert f"| {code.value} | {MEANINGS[code]} |" in text


def test_help_loads_nothing_of_weight() -> None:
    """No pyspark and no pandas for somebody who wants to read."""
    code = (
        "import sys; from streamworker.cli import main\n"
        "for arguments in (['--version'], ['--help'], ['run', '--help']):\n"
        "    sys.argv[1:] = arguments\n"
        "    try: main()\n"
        "    except SystemExit: pass\n"
        "    print([m for m in ('pyspark', 'pandas') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(PAGE.parents[1])},
    )
    assert done.stderr.splitlines() == ["[]"] * 3 and done.stdout.count("Usage: ") == 2
