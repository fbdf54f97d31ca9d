"""The documentation says what the code does."""

import doctest
import re
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from docs import generate
from docs.logevents import MEANINGS, events
from docs.reference import _commands
from streamworker.cli.root import app as command_line
from streamworker.cli.workers.exporter import METRICS
from streamworker.core.protocols.registry import PROTOCOLS
from streamworker.redisio.group.operations import KEY_TABLE
from streamworker.settings import Settings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
        *DOCS.rglob("*.md"),
    ]
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"(?<![\w/.-])(?:\.ci|benchmarks|deploy|docs|examples|streamworker|tests)/[\w./*-]*[\w/*]")
TARGETS = re.compile(r"(?:`|^(?=make [a-z -]+(?:#|$)))make ([a-z -]+)", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def anchors(path: Path) -> set[str]:
    """Return what a link may name in a page, as GitHub makes it from the headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_that_are_made_from_the_code_are_current() -> None:
    """Else: make docs. Each part stands on a page, between its marks."""
    rendered = generate.render()
    stale = [name_of(path) for path, text in rendered.items() if path.read_text("utf-8") != text]
    assert not stale, "run `make docs`"
    stand = {mark["name"] for text in rendered.values() for mark in generate.MARKED.finditer(text)}
    assert stand == generate.parts().keys()


SETTINGS = {field.name for field in fields(Settings)}.union(
    *(entry.settings().values() for entry in PROTOCOLS.values())
)
"""Of an application, and of single protocols."""


def test_of_every_kind_of_key_is_said_what_a_stranger_can_do_to_it_and_what_holds() -> None:
    """One who can write it; and neither what is promised nor what is not is left open."""
    section = (DOCS / "security.md").read_text("utf-8").partition("## Who can write a key\n")[2]
    lines = [line.strip("| ").split(" | ") for line in section.partition("\n## ")[0].splitlines()]
    said = {line[0].strip("`"): line[1:] for line in lines if line[0].startswith("`sw:")}
    assert {row.key for row in KEY_TABLE} <= said.keys()
    assert all(len(cells) == 3 and all(map(str.strip, cells)) for cells in said.values())


def test_every_command_is_documented_and_used_in_the_guides() -> None:
    """In cli.md as a section; and in some other page, where a reader learns when to use it."""
    reference = (DOCS / "cli.md").read_text("utf-8")
    guides = "\n".join(page.read_text("utf-8") for page in PAGES if page.name != "cli.md")
    for command in _commands(command_line, ""):
        assert f"## streamworker {command.path}\n" in reference
        assert f"streamworker {command.path}" in guides, f"no guide mentions `streamworker {command.path}`"


def test_every_setting_a_guide_names_exists() -> None:
    """A renamed setting must not live on in prose; a metric may have a unit, too."""
    endings = ("_ms", "_bytes", "_max", "_entries_max")
    for page in PAGES:
        for name in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", page.read_text("utf-8")):
            if name.endswith(endings):
                assert name in SETTINGS or name in METRICS, f"{name_of(page)} names {name}"


def test_links_lead_somewhere() -> None:
    """To a file that is there, and to a heading that it has."""
    wrong = []
    for path in PAGES:
        for target in LINK.findall(path.read_text("utf-8")):
            file, _, anchor = target.partition("#")
            page = (path.parent / file).resolve() if file else path
            if "://" not in target and not (page.exists() and (not anchor or anchor in anchors(page))):
                wrong.append((name_of(path), target))
    assert wrong == []


def test_files_targets_and_tests_that_a_page_names_exist() -> None:
    """A reader finds each file of the repository, each target of the Makefile and each test by its name."""
    texts = (path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    tests = {name for text in texts for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)}
    wrong = []
    for path in PAGES:
        text = path.read_text("utf-8")
        missing = {name for name in FILE.findall(text) if not any(ROOT.glob(name))}
        missing |= {name for names in TARGETS.findall(text) for name in names.split()} - made()
        missing |= set(re.findall(r"`(test_\w+)`", text)) - tests
        wrong += [(name_of(path), name) for name in sorted(missing)]
    assert wrong == [], "These pages name what is not there"


@cache
def made() -> set[str]:
    """Return the targets of the Makefile."""
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=name_of)
def test_a_forge_runs_targets_of_the_makefile_and_each_action_at_one_version(path: Path) -> None:
    """What it does can be done here, and nobody changes it from outside."""
    text = path.read_text("utf-8")
    targets = set(re.findall(r"run: make ([\w-]+)$", text, re.MULTILINE))
    assert targets <= made()
    assert targets or "run: .ci/run\n" in text
    assert all(re.fullmatch(r"[\w/-]+@v\d+\.\d+\.\d+", used) for used in re.findall(r"uses: (.+)", text))


RIDDLES = ("who wants in", "is past", "what it came to", "deed", "by right", "mended", "put aside")
"""Words that only their writer understands; each stood in several places."""


def test_docs_and_docstrings_are_free_of_riddles() -> None:
    """The field has a term for each of them: is over, result, action, allowed, repaired, quarantined."""
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder, ending in (("streamworker", "py"), ("streamworker", "lua"), ("docs", "md"))
        for file in sorted((ROOT / folder).rglob(f"*.{ending}"))
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if re.search(rf"\b({'|'.join(RIDDLES)})\b", line)
    ]
    assert found == []


def test_the_glossary_is_in_order_and_names_nothing_twice() -> None:
    """One meaning for each word."""
    rows = re.findall(r"^\| ([^|]+) \|", (DOCS / "glossary.md").read_text("utf-8"), re.MULTILINE)
    words = [row.strip().lower() for row in rows[1:] if not row.startswith("-")]
    assert words == sorted(words)
    assert len(set(words)) == len(words)


def test_every_decision_says_what_was_not_taken_and_its_price() -> None:
    """Numbered without a gap."""
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    for number, path in enumerate(pages, start=1):
        text = path.read_text("utf-8")
        assert text.startswith(f"# {number:04}: ")
        assert all(f"**{part}.**" in text for part in ("Chosen", "Not taken", "Price")), path.name


def modules_with_examples() -> list[Any]:
    """Return the names of the modules in whose docstrings is something to run, without Spark."""
    return [
        pytest.param(
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"),
            marks=pytest.mark.spark("imports pyspark") if "\nfrom pyspark" in text else (),
        )
        for path in sorted(
            [*(ROOT / "streamworker").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), *DOCS.glob("*.py")]
        )
        if re.search(r">>> (?!.*\+SKIP)", text := path.read_text("utf-8"))
    ]


@pytest.mark.parametrize("name", modules_with_examples())
def test_an_example_in_a_docstring_prints_what_it_says(name: str) -> None:
    """Whoever copies it gets the same."""
    failed, tried = doctest.testmod(import_module(name))
    assert tried > 0
    assert failed == 0


def test_each_event_of_the_log_has_a_meaning() -> None:
    """And the table of meanings names no event that the code does not log."""
    logged = events()
    assert logged.keys() == MEANINGS.keys()
    assert logged["record_dead"] == ("error", "runtime/run/modes/modes")
    assert logged["heartbeats_late"][0] == logged["partitions_started"][0] == "info"
