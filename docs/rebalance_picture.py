"""Draw who worked on which partition when, as SVG. Pure.

One row a partition, time from left to right, one colour a worker. A bar lasts from a worker's first
commit under one lock to its last: what stays white between two bars is the pause of a handover.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from xml.sax.saxutils import escape

from benchmarks.rebalances.facts import Commit

COLOURS = (
    "#4e79a7", "#f28e2b", "#76b7b2", "#e15759", "#59a14f", "#edc948", "#b07aa1", "#ff9da7", "#9c755f",
    "#bab0ac", "#2f4b7c", "#a05195",
)  # fmt: skip
HEAD, FOOT, SIDE = 40, 26, 46
WIDTH = 900
AXIS_STEPS = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)


def draw(
    commits: Mapping[int, Sequence[Commit]],
    *,
    title: str,
    since_ms: int,
    until_ms: int,
    event_ms: int,
    row_px: float = 1.5,
) -> str:
    """Return the picture of a window of time; a line marks when something was done to the group.

    Examples
    --------
    >>> commits = {0: [Commit(100, 90, "w1", 1), Commit(200, 190, "w1", 1), Commit(400, 300, "w2", 2)]}
    >>> svg = draw(commits, title="A join", since_ms=0, until_ms=500, event_ms=200)
    >>> svg.count("<rect") - 1, "w2" in svg
    (2, True)
    """
    rows = sorted(commits)
    height = HEAD + FOOT + row_px * len(rows)
    scale = (WIDTH - SIDE - 10) / (until_ms - since_ms)

    def x(at_ms: int) -> float:
        return round(SIDE + scale * (min(max(at_ms, since_ms), until_ms) - since_ms), 1)

    names = sorted({each.owner for p in rows for each in commits[p] if since_ms <= each.at_ms <= until_ms})
    colour = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}">',
        "<style>text { font: 11px sans-serif }</style>",
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text x="{SIDE}" y="15" style="font: bold 13px sans-serif">{escape(title)}</text>',
    ]
    for index, name in enumerate(names):
        left = SIDE + 42 * index
        parts.append(f'<text x="{left}" y="32" fill="{colour[name]}">■ {escape(name)}</text>')
    for row, partition in enumerate(rows):
        y = HEAD + row * row_px
        for (owner, _), run in groupby(commits[partition], key=lambda each: (each.owner, each.epoch)):
            times = [each.at_ms for each in run]
            begin, end = x(times[0]), x(times[-1])
            if times[-1] >= since_ms and times[0] <= until_ms:
                parts.append(
                    f'<rect x="{begin}" y="{y:.1f}" width="{max(end - begin, 0.8):.1f}" '
                    f'height="{row_px:.1f}" fill="{colour.get(owner, "#000")}"/>'
                )
    bottom = HEAD + row_px * len(rows)
    at = x(event_ms)
    parts.append(f'<line x1="{at}" x2="{at}" y1="{HEAD}" y2="{bottom:.0f}" stroke="#000"/>')
    step = next((each for each in AXIS_STEPS if (until_ms - since_ms) / each <= 12), AXIS_STEPS[-1])
    first, last = (since_ms - event_ms) // step + 1, (until_ms - event_ms) // step
    parts += (
        f'<text x="{x(event_ms + n * step)}" y="{bottom + 16:.0f}" text-anchor="middle">'
        f"{n * step / 1000:g} s</text>"
        for n in range(first, last + 1)
    )
    parts.append(f'<text x="4" y="{HEAD + 10}">0</text><text x="4" y="{bottom:.0f}">{rows[-1]}</text>')
    return "\n".join([*parts, "</svg>", ""])
