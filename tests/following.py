"""Does what a page says, word for word, as a reader does who begins in an empty folder.

A page says what to do with its blocks of code in comments, which no reader sees:

- ``<!-- save: FILE -->`` before a block: it is saved under that name.
- ``<!-- append: FILE -->`` before a block: it comes to the end of that file.
- A ``sh`` block is run, command by command, in one folder and in a shell whose exported variables stay. Lines
  that install packages are passed over: the tests have them.
- ``<!-- beside: NAME -->`` before a ``sh`` block: it is started, and runs until ``<!-- stop: NAME -->``,
  which sends it SIGTERM and waits, or until the end of the page. Where nobody stops it, it needs no name.
- A ``text`` block after a ``sh`` block is what that block printed. In it ``…`` stands for what differs:
  within a line for any text, in a line of its own for any lines.
- ``<!-- until: COMMAND -->``: the reader waits until a command of the shell succeeds.
- ``<!-- skip: REASON -->`` before a block: the reader only reads it.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Self

from tests.helpers import LoggedProcess, wait_for
from tests.spark.processes import START_S

STEP = re.compile(
    r"(?:<!-- (?P<mark>save|append|beside|until|stop|skip)(?:: (?P<what>.+?))? -->)"
    r"|^```(?P<kind>\w+)\n(?P<body>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
ONE_COMMAND = re.compile(r"(?<!\\)\n(?!\s)")
"""Between two commands; a command may have lines that end with a backslash, or that are indented."""
PAUSE_S = 0.5
"""Between two looks that start a process: without it they take the time of what they wait for."""


class Reader:
    """One who follows a page in a folder of their own."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page, self.folder = page, folder / "empty"
        self.folder.mkdir()
        self._kept = folder / "environment"
        self._beside: dict[str, LoggedProcess] = {}
        python = str(Path(sys.executable).parent)
        self._environ = {**os.environ, "PATH": os.pathsep.join((python, os.environ["PATH"]))}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._beside.values():
            process.end()

    def follow(self) -> Iterator[str]:
        """Do all that the page says; stop after each command for a look."""
        printed, mark, what = "", "", ""
        for step in STEP.finditer(self.page.read_text("utf-8")):
            kind, body = step["kind"], step["body"]
            if step["mark"] == "until":
                wait_for(partial(self._succeeds, step["what"]), step["what"], START_S, PAUSE_S)
            elif step["mark"] == "stop":
                stopped = self._beside.pop(step["what"])
                stopped.signal(signal.SIGTERM)
                stopped.wait(START_S)
            elif step["mark"]:
                mark, what = step["mark"], step["what"] or ""
                continue
            elif mark in {"save", "append"}:
                with (self.folder / what).open("a" if mark == "append" else "w", encoding="utf-8") as file:
                    file.write(body)
            elif mark == "beside":
                self._start(what, body)
            elif mark == "skip":
                pass
            elif kind == "text":
                self.compare(printed, body)
            else:
                assert kind == "sh", f"{self.page.name} does not say what to do with:\n{body}"
                printed = ""
                for command in ONE_COMMAND.split(body.rstrip("\n")):
                    if "pip install" not in command and not command.startswith("python3 -m venv"):
                        printed += self.run(command)
                        yield command
            mark = what = ""

    def run(self, command: str) -> str:
        """Run a command, and return what it prints."""
        done = subprocess.run(
            ["bash", "-ec", f"{command}\nenv -0 > {self._kept}"],
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        logs = "".join(f"\n{name}: {each.log()[-2000:]}" for name, each in self._beside.items())
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr[-3000:]}{logs}"
        self._environ = dict(line.split("=", 1) for line in self._kept.read_text().split("\0") if line)
        return done.stdout

    def compare(self, printed: str, said: str) -> None:
        """Compare what a block printed with what the page says of it."""
        pattern = re.escape(said).replace("\\\n…\\\n", "\n(?:.*\n)*").replace("…", ".*")
        assert re.fullmatch(pattern, printed), f"{self.page.name} says:\n{said}\nAnd it printed:\n{printed}"

    def _start(self, name: str, body: str) -> None:
        (self.folder.parent / "logs").mkdir(exist_ok=True)
        name = name or f"process {len(self._beside) + 1}"
        self._beside[name] = LoggedProcess(
            ["bash", "-ec", f"exec {body}"],
            cwd=self.folder,
            log_path=self.folder.parent / "logs" / name,
            environ=self._environ,
        )

    def _succeeds(self, command: str) -> bool:
        done = subprocess.run(
            ["bash", "-ec", command], cwd=self.folder, env=self._environ, capture_output=True, check=False
        )
        return done.returncode == 0
