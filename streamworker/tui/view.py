"""Renders a frame: from a model and a size to a rich renderable.

This module is pure. The frame is never larger than the given size. The matrix leaves a few lines for
members, rebalances and readers; in a very small terminal members and rebalances are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from streamworker.core.snapshot import PartitionView
from streamworker.core.text import printable
from streamworker.core.words import counted
from streamworker.tui import matrix, overview
from streamworker.tui.figures import compact, duration, end_of, failure, held_up, per_second
from streamworker.tui.model import Model, WorkerRow

WIDE = 118
"""From this width on, members, rebalances and readers are side by side."""
_LOWER_MIN = 5
"""Minimum height of a lower panel, with its frame."""
_BORDER = "grey42"


@dataclass(frozen=True, slots=True)
class Tabs:
    """The processors that the user can switch between."""

    names: Sequence[str]
    selected: int = 0
    paused: bool = False
    notices: Sequence[str] = ()
    """Warnings about what runs beside the groups."""
    overview: bool = False
    """Whether all processors are on the screen."""


def render(model: Model, width: int, height: int, tabs: Tabs | None = None) -> RenderableType:
    """Draw one frame of exactly ``width`` x ``height`` characters; 80 x 24 and more show everything."""
    tabs = tabs or Tabs((model.snapshot.processor,))
    parts: list[RenderableType] = [_header(model, width), *_warned(tabs, width), *_notices(model, width)]
    if len(tabs.names) > 1:
        parts.insert(0, _tab_line(tabs, width))
    room = height - len(parts) - 1
    readers = 0 if width >= WIDE or not model.readers else min(len(model.readers), 3 if room >= 20 else 1) + 2
    drawn = matrix.draw(model, width - 4, max(1, room - readers - _LOWER_MIN - 2))
    parts.append(_box(f"workers and {counted(len(model.cells), 'partition')}", drawn, width, len(drawn) + 2))
    rest = room - readers - len(drawn) - 2
    if rest >= 3:
        parts.append(_lower(model, width, rest))
    if readers:
        parts.append(_box("spark readers", _readers(model, width - 4, readers - 2), width, readers))
    parts.append(_footer(tabs, width))
    return Group(*parts)


def render_overview(models: Sequence[Model], width: int, height: int, tabs: Tabs) -> RenderableType:
    """Draw the frame with a line for each processor, and one for each table."""
    cells = [[str(cell) for cell in row] for row in (overview.COLUMNS, *map(overview.line, models))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        Text(
            "  ".join(map(str.ljust, row, widths)).rstrip(),
            style="dim" if at == 0 else "bold red" if row[-1] else "",
        )
        for at, row in enumerate(cells)
    ]
    tables = [
        Text(f"{model.snapshot.processor} └─ {overview.table_line(table, model.snapshot.taken_ms)}")
        for model in models
        for table in model.snapshot.tables
    ]
    lines += [Text(""), *tables] if tables else []
    parts: list[RenderableType] = [_tab_line(tabs, width), *_warned(tabs, width), *_outage(models[0], width)]
    room = height - len(parts) - 1
    if len(lines) > room - 2:
        lines[room - 3 :] = [Text(f"and {len(lines) - room + 3} more lines", style="dim")]
    parts.append(_box(f"{models[0].snapshot.app}: {counted(len(models), 'processor')}", lines, width, room))
    return Group(*parts, _footer(tabs, width))


def waiting(text: str, width: int, height: int, tabs: Tabs) -> RenderableType:
    """Draw the frame that is shown until the first snapshot has been taken."""
    lines = [Text(text, style="yellow"), *_warned(tabs, width - 4)]
    return Group(_box("streamworker", lines, width, height - 1), _footer(tabs, width))


def _header(model: Model, width: int) -> Text:
    group = model.snapshot
    line = Text(f" {group.app}", style="bold").append(f"  {group.stream} → ", style="not bold")
    line.append(group.processor)
    active = len(group.alive) - len(model.standbys)
    line.append(f"   {counted(active, 'worker')}")
    if model.standbys:
        line.append(f" + {len(model.standbys)} standby")
    line.append("   lag ").append(compact(group.lag), style="bold")
    line.append("   in ").append(per_second(model.arrived_per_s))
    line.append("   out ").append(per_second(model.committed_per_s))
    if dead := sum(view.dead for view in group.partitions):
        line.append("   dead ").append(compact(dead), style="bold red")
    if width >= WIDE:
        line.append(f"   generation {group.generation}", style="dim")
    return _fit(line, width)


def _tab_line(tabs: Tabs, width: int) -> Text:
    line = Text(" ")
    for index, name in enumerate(tabs.names):
        is_shown = tabs.overview or index == tabs.selected
        line.append(f" {name} ", style="reverse bold" if is_shown else "dim").append(" ")
    return _fit(line, width)


def _warned(tabs: Tabs, width: int) -> list[Text]:
    return [
        Text(f" {line}", style="bold red")
        for notice in tabs.notices
        for line in wrap(printable(notice), width - 1)
    ]


def _outage(model: Model, width: int) -> list[Text]:
    if model.outage is None:
        return []
    age = duration(model.outage.data_age_ms)
    text = f" What you see is {age} old. {model.outage.problem}"
    return [_fit(Text(text, style="bold white on red"), width, fill=True)]


def _notices(model: Model, width: int) -> list[Text]:
    """Return the lines of warnings: no connection, overwritten keys, halted and paused partitions."""
    notices = _outage(model, width)
    notices += [
        _fit(Text(f" {problem}", style="bold red"), width)
        for problem in (*model.snapshot.problems, *model.snapshot.unknown, *model.snapshot.deaths)
    ]
    if model.halted:
        text = f" halted: partition {_few(model.halted)}: {model.halted[0].reason}"
        notices.append(_fit(Text(text, style="bold red"), width))
    retrying = [cell.view for cell in model.cells if cell.view.state == "retrying"]
    paused = [cell.view for cell in model.cells if cell.view.pause is not None]
    for views, text in ((retrying, " retrying: partition"), (paused, " partition")):
        if views:
            said = f"{text} {_few(views)}: {held_up(views[0], model.snapshot.taken_ms)}"
            notices.append(_fit(Text(said, style="yellow"), width))
    return notices


def _few(views: Sequence[PartitionView]) -> str:
    return ", ".join(str(view.partition) for view in views[:8]) + (" …" if len(views) > 8 else "")


def _footer(tabs: Tabs, width: int) -> Text:
    line = Text(" q", style="bold").append(" quit", style="not bold dim")
    if tabs.paused:
        line.append("  PAUSED", style="yellow")
    if len(tabs.names) > 1:
        line.append("  ←/→", style="bold").append(" processor", style="dim")
        line.append("  o", style="bold").append(" one" if tabs.overview else " all", style="dim")
    line.append("  p", style="bold").append(" go on" if tabs.paused else " pause", style="dim")
    gap = "   "
    for state, mark in matrix.MARKS.items():  # As many as there is room for.
        legend = f"{gap}{mark} {state}"
        if state not in ("pausing", "unknown") and len(line) + len(legend) <= width:
            line.append(legend, style="dim")
            gap = "  "
    return _fit(line, width)


def _lower(model: Model, width: int, height: int) -> RenderableType:
    """Return members and rebalances side by side, and also the readers in a wide terminal."""
    wide = width >= WIDE
    size = width // 3 if wide else width // 2
    second = size if wide else width - size
    row = [
        _box("members", _members(model, size - 4, height - 2), size, height),
        _box("rebalances", _rebalances(model, height - 2), second, height),
    ]
    if wide:
        third = width - 2 * size
        row.append(_box("spark readers", _readers(model, third - 4, height - 2), third, height))
    grid = Table.grid()
    for panel in row:
        grid.add_column(width=panel.width, no_wrap=True)
    grid.add_row(*row)
    return grid


def _members(model: Model, width: int, lines: int) -> list[Text]:
    if not model.workers:
        return [Text("no worker is known" if model.snapshot.unknown else "no worker runs", style="dim")]
    name = max(6, width - 29)
    heading = Text(f"  {'':<{name}} {'owns':>4} {'rate':>6} {'beat':>6} state", style="dim")
    lines -= 1
    shown = model.workers if len(model.workers) <= lines else model.workers[: max(0, lines - 1)]
    drawn = [heading, *[_member(worker, name) for worker in shown]]
    hidden = model.workers[len(shown) :]
    if hidden:
        standby = sum(1 for worker in hidden if worker.member.state == "standby")
        drawn.append(Text(f"  and {len(hidden)} more, {standby} standby", style="dim"))
    return drawn


def _member(worker: WorkerRow, name: int) -> Text:
    styles = {"silent": "bold red", "leaving": "yellow", "standby": "dim", "held": "yellow"}
    member, owned = worker.member, len(worker.member.partitions)
    line = Text(worker.letter, style=f"bold {matrix.colour(worker.letter)}")
    line.append(f" {end_of(member.name, name):<{name}}", style="not bold default")
    line.append(f" {owned:>4}", style="not bold default" if owned else "dim")
    line.append(f" {per_second(worker.per_s):>6}", style="not bold default")
    line.append(f" {duration(member.beat_age_ms):>6}", style="red" if member.state == "silent" else "dim")
    return line.append(f" {member.state}", style=styles.get(member.state, "green"))


def _rebalances(model: Model, lines: int) -> list[Text]:
    if not model.rebalances:
        return [Text("none known", style="dim")]
    drawn = [Text(f"{'ago':>8} {'cause':<7}{'member':<9}{'moved':>5} took", style="dim")]
    for change in model.rebalances[: lines - 1]:
        ago_ms = max(0, model.snapshot.taken_ms - change.at_ms)
        line = Text(f"{duration(ago_ms):>8} ", style="dim")
        line.append(f"{change.cause[:6]:<7}", style="red" if change.cause == "death" else "bold default")
        # A worker's end tells it apart; what an operator did, which has no generation, its beginning.
        member = end_of(change.member, 8) if change.generation else change.member[:8]
        line.append(f"{member:<9}{len(change.moved):>5} ", style="default")
        took = (duration(change.ms), "default")
        if change.ms is None:
            took = ("superseded", "dim") if change.superseded else ("moving", "bold yellow")
        drawn.append(line.append(*took))
    return drawn


def _readers(model: Model, width: int, lines: int) -> list[Text]:
    if not model.readers:
        return [Text("no Spark query reads this processor", style="dim")]
    name = max(8, width - 34)
    # If not all readers fit, those with the largest lag are shown.
    order = sorted(model.readers, key=lambda reader: (-reader.view.lag_rows, reader.view.name))[:lines]
    drawn = []
    for reader in sorted(order, key=lambda reader: reader.view.name):
        view, age_ms = reader.view, max(0, model.snapshot.taken_ms - reader.view.updated_ms)
        line = Text(f"{view.name[:name]:<{name}}")
        line.append(f" {compact(reader.rows):>4} rows")
        line.append(f"  lag {compact(view.lag_rows):>4}", style="bold" if view.lag_rows else "dim")
        line.append(f" {per_second(reader.per_s):>6}")
        line.append(f" {duration(age_ms):>6}", style="dim")
        if failed := failure(view, model.snapshot.taken_ms):
            line = Text(f"{view.name[:name]} {failed}", style="bold red")
        drawn.append(line)
    return drawn


def _box(title: str, lines: Sequence[Text], width: int, height: int) -> Panel:
    fitted = [_fit(line, width - 4) for line in lines[: max(0, height - 2)]]
    return Panel(
        Group(*fitted), title=title, title_align="left", border_style=_BORDER, width=width, height=height
    )


def _fit(line: Text, width: int, *, fill: bool = False) -> Text:
    """Cut a line to the width and escape control characters, which names and reasons may hold."""
    line.plain = printable(line.plain)
    line.truncate(width, overflow="ellipsis", pad=fill)
    line.no_wrap = True
    return line
