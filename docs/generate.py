"""Writes the parts of docs/ that are made from the code: `make docs`, or `python docs/generate.py`.

Whole pages: settings.md and cli.md. In other pages, what stands between
`<!-- generated: NAME -->` and `<!-- end of NAME -->`. tests/test_docs.py fails when a page is not
what this would write.
"""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from itertools import pairwise
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from docs.logevents import table as log_events
from docs.redis_keys import HOLDS
from docs.reference import render as render_cli
from docs.roles import ROLES_IN_WORDS
from streamworker.cli.workers.exporter import METRICS
from streamworker.core.ownership.lifecycle import as_table
from streamworker.core.protocols.registry import DEFAULT, PROTOCOLS
from streamworker.core.rules import ANY_NUMBER, CHECKED, NUMBER_MAX, Rule
from streamworker.redisio.admin.rights import ROLES, acl_rules
from streamworker.redisio.group.operations import KEY_TABLE
from streamworker.runtime.meters import METERS
from streamworker.settings import LIMITS, RULES, Settings
from streamworker.spark.source.options import NAMES as SPARK_OPTIONS
from streamworker.variables import ENV_PREFIX, OTHER_VARIABLES
from tests.callables import table as callables
from tests.changes import table as changes
from tests.core.vectors import VECTORS
from tests.records.cells import table as codecs_and_types
from tests.sends import table as errors_of_sends
from tests.simulator.scenario import HAPPENINGS, play, read

MADE_BY = "<!-- Made by `make docs` from {source}; edit that, not this. A test compares them. -->"


ANY = "a whole number from 1 to 10**12"
"""What most numbers are, which the page says once."""
LEADS = re.compile(r"docs: ([a-z/-]+)")
"""How docstrings and messages name a page, which an installation does not have."""

# -- whole pages -----------------------------------------------------------------------------


def settings_page() -> str:
    """Return docs/settings.md, from the fields of each class of settings and what is written below each."""
    own = [(kind, f"{kind.name}_") for entry in PROTOCOLS.values() if fields(kind := entry.settings)]
    lines = [
        "# Settings",
        "",
        MADE_BY.format(source="streamworker/settings.py and core/protocols/*/settings.py"),
        "",
        "Each setting is an argument of `App(...)`, and an environment variable: its name in capitals after",
        f'`{ENV_PREFIX}`. `App("shop", trim_interval_ms=5_000)` and `{ENV_PREFIX}TRIM_INTERVAL_MS=5000` say the',
        "same; the argument wins. Unknown names, wrong types and values that contradict each other are refused when",
        "the `App` is made. A variable that is almost one of these is warned about.",
        "",
        "Times are in milliseconds, sizes in bytes. A number is whole, from 1 to 10**12 where nothing else is said.",
        "",
        *settings_of(Settings, ""),
    ]
    for kind, prefix in own:
        example = fields(kind)[0]
        lines += [
            "",
            f"## With coordination {kind.name}",
            "",
            f"With `coordination={kind.__name__}({example.name}={example.default:_})` no variable is read.",
            "",
            *settings_of(kind, prefix),
        ]
    lines += [
        "",
        "## Other variables",
        "",
        "| variable | holds |",
        "|---|---|",
        *(f"| `{name}` | {purpose} |" for name, purpose in OTHER_VARIABLES.items()),
        "",
        "## What must hold",
        "",
        "| setting | must be at least |",
        "|---|---|",
    ]
    for entry in PROTOCOLS.values():
        rules = RULES if entry.settings is type(DEFAULT) else entry.settings.RULES
        lines += map(rule_row, rules)
    lines += [
        "",
        "## Arguments",
        "",
        "Arguments of functions are checked by the types that the [reference](api/app.md) shows. `True` is no number,",
        'and neither is `nan`, `2.0` or `"2"`. These have limits:',
        "",
        "| what | argument | takes |",
        "|---|---|---|",
    ]
    for what, kinds in sorted(CHECKED.items()):
        limited = {name: kind.words for name, kind in kinds.items() if "number from" in (kind.words or "")}
        lines += [
            f"| `{what}` | `{name}=` | {takes} |" for name, takes in limited.items() if ANY not in takes
        ]
    return "\n".join(lines) + "\n"


def settings_of(kind: type, prefix: str) -> list[str]:
    """Return the table of a class of settings."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    reasons = {
        field.target.id: LEADS.sub(
            r"[docs: \1](\1.md)", inspect.cleandoc(text.value.value).replace("\n", " ").replace("``", "`")
        )
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
    lines = ["| setting | default | for |", "|---|---|---|"]
    for field in fields(kind):
        default = f"{field.default:,}" if type(field.default) is int else str(field.default)
        default = f"`{default}`" if default else "none"
        low, high = LIMITS.get(field.name, ANY_NUMBER)
        limits = f", from {low:,} to {high:,}" if field.name in LIMITS and high != NUMBER_MAX else ""
        lines.append(f"| `{prefix}{field.name}` | {default}{limits} | {reasons[field.name]} |")
    return lines


def rule_row(rule: Rule) -> str:
    """Return a rule as a row."""
    times = f"{rule.factor} x " if rule.factor > 1 else ""
    more = "more than " if rule.relation == ">" else ""
    unless = ", unless `{}` is `{}`".format(*rule.unless) if rule.unless else ""
    return f"| `{rule.name}` | {more}{times}`{rule.other}`{unless} |"


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "cli.md": render_cli,
}

# -- parts of pages --------------------------------------------------------------------------


def keys() -> str:
    """Return the table of keys."""
    rows = [f"| `{row.key}` | {row.type} | {HOLDS[row.key]} |" for row in KEY_TABLE]
    return "\n".join(["| key | type | holds |", "|---|---|---|", *rows])


def exporter_metrics() -> str:
    """Return the table of the metrics of the exporter."""
    rows = [f"| `{name}` | {text} |" for name, text in METRICS.items()]
    return "\n".join(["| metric | says |", "|---|---|", *rows])


def metrics_of_a_process() -> str:
    """Return the table of the metrics that each process has of itself."""
    rows = [
        f"| `{name}` | {', '.join(meter.by)} | {meter.text}{' A histogram.' if meter.bounds else ''} |"
        for name, meter in METERS.items()
    ]
    return "\n".join(["| metric | labels | says |", "|---|---|---|", *rows])


def spark_options() -> str:
    """Return the table of the options of the Spark source."""
    rows = [
        f"| `{name}` | {option.takes} | {option.default} | {option.meaning} |"
        for name, option in SPARK_OPTIONS.items()
    ]
    return "\n".join(["| option | takes | default | means |", "|---|---|---|---|", *rows])


def vectors() -> str:
    """Return the test vectors of the partitioner."""
    rows = [
        f"| `{key!r}` | `{data!r}` | `{crc:08x}` | {partition} |" for key, data, crc, partition in VECTORS
    ]
    head = ["| key, as Python writes it | its bytes | CRC-32 | partition of 16 |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def rights() -> str:
    """Return what each role does, and what it is refused."""
    rows = [f"| {role.name} | {' | '.join(ROLES_IN_WORDS[role.name])} |" for role in ROLES]
    return "\n".join(["| user | does | is refused |", "|---|---|---|", *rows])


def acl_lines() -> str:
    """Return the rules for a worker, as a command in short lines."""
    command = " ".join(["ACL SETUSER", "shop-worker", "on", *acl_rules("shop", "worker")])
    lines = textwrap.wrap(
        command, 90, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(["```text", *lines, "```"])


def decisions() -> str:
    """Return the list of decisions, from their titles."""
    rows = []
    for path in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        title = path.read_text("utf-8").splitlines()[0].removeprefix("# ")
        rows.append(f"- [{title}]({path.name})")
    return "\n".join(rows)


STORY = """# One group from its first worker to a death
given: membership, 4 partitions, entries every 100 ms
     0 ms  w1 starts
   505 ms  w2 starts
  1105 ms  w1 is asked to leave
  1505 ms  w3 starts
  5105 ms  w2 is killed
  8000 ms  end"""
CHAPTERS = {"join": (505, 700), "death": (5105, 8000)}
"""When each part of the story begins and ends; the parts on the page are its transcripts."""


def transcripts() -> dict[str, str]:
    """Return the transcript of each chapter of the story, as the real cores write it."""
    story, told = read(STORY), {}
    for name, (start_ms, end_ms) in CHAPTERS.items():
        before = [step for step in story.steps if step[0] < start_ms]
        during = [step for step in story.steps if start_ms <= step[0] < end_ms]
        steps = (*before, (start_ms, "show"), *during, (end_ms, "end"))
        chapter, violations = play(dataclasses.replace(story, steps=steps))
        assert not violations
        told[name] = "\n".join(["```text", *chapter.transcript, "```"])
    return told


def happenings() -> str:
    """Return what may happen in a scenario, as it is written."""
    forms = []
    for pattern in HAPPENINGS:
        form = pattern.replace(r"(w\w+)", "w1").replace(r"(\w+)", "ID").replace(r"(\d+)", "N")
        form = form.replace("(.+)", "w1 w2").replace("(?:each partition|partition N)", "partition N")
        form = form.replace("((?:is|has|gives) .+)", "is cut off")
        forms.append(re.sub(r"\((?:\?:)?([^()]+)\)\?", r"\1", form))
    return "\n".join(["```text", *forms, "```"])


@cache
def parts() -> dict[str, str]:
    """Return everything that stands in a page between marks, by name."""
    told = {f"transcript of {name}": text for name, text in transcripts().items()}
    return {
        "happenings": happenings(),
        "keys": keys(),
        "lifecycle": as_table(),
        "log events": log_events(),
        "metrics of a process": metrics_of_a_process(),
        "exporter metrics": exporter_metrics(),
        "spark options": spark_options(),
        "vectors": vectors(),
        "codecs and types": codecs_and_types(),
        "rights": rights(),
        "lines of the ACL": acl_lines(),
        "decisions": decisions(),
        "callables": callables(),
        "changes": changes(),
        "errors of sends": errors_of_sends(),
        **told,
    }


MARKED = re.compile(r"(<!-- generated: (?P<name>[\w -]+?) -->\n).*?(<!-- end of (?P=name) -->)", re.DOTALL)


def filled(text: str, known: dict[str, str]) -> str:
    """Return a page with what stands between marks made anew."""
    return MARKED.sub(lambda match: f"{match[1]}{known[match['name']]}\n{match[3]}", text)


def render() -> dict[Path, str]:
    """Return all pages that are made, wholly or in part, from the code."""
    pages = {DOCS / name: make() for name, make in PAGES.items()}
    known = parts()
    for path in [DOCS.parent / "README.md", *DOCS.rglob("*.md")]:
        if path not in pages and path.exists() and MARKED.search(text := path.read_text("utf-8")):
            pages[path] = filled(text, known)
    return pages


if __name__ == "__main__":
    for target, content in render().items():
        if not target.exists() or target.read_text("utf-8") != content:
            target.write_text(content, "utf-8")
            print(f"wrote {target.relative_to(DOCS.parent)}")
