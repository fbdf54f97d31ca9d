"""Measure the protocols side by side, and draw them: ``python docs/compare.py [NAME ...]``.

Starts a server of its own and ten worker processes at a time; takes about eight minutes. Writes
``docs/images/rebalances-NAME.json`` and, of the join, ``docs/images/join-NAME.svg``, and from all of
the former the tables in docs/protocols.md.
"""

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from rebalance_picture import draw
from benchmarks.rebalances.changes import Rebalances, Story, tell
from streamworker.dev.server import EmbeddedServer

IMAGES = Path(__file__).parent / "images"
WAYS = {
    # name: protocol, assignment, how long balance is waited for
    "membership-range": ("membership", "range", 60.0),
    "membership-sticky": ("membership", "sticky", 60.0),
    "claim": ("claim", "range", 90.0),
    "lease": ("lease", "range", 40.0),
}
PAGE = Path(__file__).parent / "protocols.md"
BEGIN, END = "<!-- measured by docs/compare.py -->", "<!-- end of what was measured -->"
BEFORE_MS = 500
LONGEST_MS = 30_000


def _picture(name: str, story: Story) -> str:
    acts = {what: at_ms for what, _, at_ms in story.acts[-3:]}
    join = next(each for each in story.changes[-3:] if each.what == "join")
    took_ms = join.balance_ms or LONGEST_MS
    return draw(
        story.commits,
        title=f"{name}: a ninth worker joins eight, {story.partitions} partitions",
        since_ms=acts["join"] - BEFORE_MS,
        until_ms=acts["join"] + max(2_000, round(1.2 * took_ms)),
        event_ms=acts["join"],
    )


def _seconds(ms: int | None) -> str:
    return "-" if ms is None else f"{ms / 1000:.1f} s" if ms >= 1_000 else f"{ms} ms"


def _rows() -> list[str]:
    lines = [
        "| | change | moves | fewest | time to balance | longest pause, moved | longest pause, unmoved |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in WAYS:
        figures = json.loads((IMAGES / f"rebalances-{name}.json").read_text("utf-8"))
        for each in figures["changes"][-3:]:
            balance = "not in 40 s" if each["balance_ms"] is None else _seconds(each["balance_ms"])
            pauses = [_seconds(each[f"pause_{which}_ms"]) for which in ("moved", "unmoved")]
            cells = (name, each["what"], each["moves"], each["least"], balance, *pauses)
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += [
        "",
        "| | commands a second and worker at rest | of a join, all | of a leave, all | all started at once |",
        "|---|---|---|---|---|",
    ]
    for name in WAYS:
        figures = json.loads((IMAGES / f"rebalances-{name}.json").read_text("utf-8"))
        join, leave = (
            "-" if each["balance_ms"] is None else str(each["commands"]) for each in figures["changes"][:2]
        )
        start = "not in 40 s" if figures["start_ms"] is None else _seconds(figures["start_ms"])
        lines.append(f"| {name} | {figures['at_rest']:.1f} | {join} | {leave} | {start} |")
    return lines


def _write_tables() -> None:
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, *_rows(), END + after]), "utf-8")


def main(names: list[str]) -> None:
    """Measure some ways to share partitions, or all."""
    for name in names or WAYS:
        protocol, assignment, timeout_s = WAYS[name]
        with EmbeddedServer() as server:
            story = asyncio.run(
                tell(Rebalances(server.url, protocol=protocol, assignment=assignment, timeout_s=timeout_s))
            )
        figures = {
            "start_ms": story.start_ms,
            "at_rest": round(story.at_rest, 2),
            "changes": [asdict(each) for each in story.changes],
        }
        (IMAGES / f"rebalances-{name}.json").write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
        (IMAGES / f"join-{name}.svg").write_text(_picture(name, story), "utf-8")
        sys.stdout.write(f"{name}: started in {story.start_ms} ms\n")
    _write_tables()


if __name__ == "__main__":
    main(sys.argv[1:])
