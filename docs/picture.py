"""Draw recorded groups as a picture: ``python docs/picture.py RECORDING OUT.svg``.

A recording is a JSON list of two lists of snapshots, a few seconds apart, as
``streamworker status --json`` prints them: of one group, or of several for the overview. The same recording
gives the same bytes, so that a test can tell whether the picture in the documentation is what the code draws.
"""

import io
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from streamworker.core.snapshot import GroupSnapshot
from streamworker.tui import model, view

THEME = TerminalTheme(
    (18, 20, 24),
    (214, 218, 224),
    [
        (40, 44, 52),
        (224, 90, 90),
        (126, 200, 126),
        (222, 186, 92),
        (95, 160, 235),
        (200, 130, 200),
        (95, 205, 205),
        (214, 218, 224),
    ],
)

TEMPLATE = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's own template loads fonts from elsewhere; a picture in a README must not load anything."""


def draw(recording: bytes) -> str:
    """Return the live view of recorded groups as SVG.

    Raises
    ------
    msgspec.ValidationError
        If the recording is not a list of two lists of snapshots.
    """
    earlier, current = msgspec.json.decode(recording, type=tuple[list[GroupSnapshot], list[GroupSnapshot]])
    models = [model.rows(before, now) for before, now in zip(earlier, current, strict=True)]
    width, height = (100, 24) if len(models) == 1 else (140, 11)
    tabs = view.Tabs([group.processor for group in current], overview=True)
    frame = (
        view.render(models[0], width, height)
        if len(models) == 1
        else view.render_overview(models, width, height, tabs)
    )
    console = Console(
        record=True,
        width=width,
        height=height,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(frame, end="")
    title = f"streamworker top {current[0].app}"
    return console.export_svg(title=title, theme=THEME, code_format=TEMPLATE, unique_id="top")


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(Path(sys.argv[1]).read_bytes()), encoding="utf-8")
