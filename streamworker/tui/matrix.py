"""The matrix of workers and partitions, in the most detailed shape that fits.

This module is pure. Sixteen partitions and four workers fit a small terminal with all figures; a
thousand partitions do not. A list orders the shapes from the most detailed to the most condensed,
and the first one that fits is drawn:

1. a row for each worker, a column of figures for each partition,
2. a row for each worker, one to three characters a partition, lag and rate as bars,
3. one row of owners, with figures or bars,
4. one character for each partition, or one character for several partitions.

The worker's letter and a mark for the state hold the information; colour only repeats it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from streamworker.tui.figures import bar, compact, end_of, tight
from streamworker.tui.model import LETTERS, SURPLUS, Model, PartitionCell, WorkerRow

LABEL = 12
"""Width of the label with a worker's letter and name."""
PALETTE = (
    *("#5fafff", "#ffaf5f", "#87d787", "#d787d7", "#d7d75f"),
    *("#5fd7d7", "#ff87af", "#afafff", "#d7af87", "#87afaf"),
)
DRAINING, ACQUIRING, HALTED, PAUSED, RETRYING, UNOWNED, OTHER = "◐", "○", "✖", "‖", "↻", "-", "·"
UNKNOWN = "?"
MARKS = {
    "halted": HALTED,
    "retrying": RETRYING,
    "draining": DRAINING,
    "acquiring": ACQUIRING,
    "unowned": UNOWNED,
    "paused": PAUSED,
    "pausing": PAUSED,
    "unknown": UNKNOWN,
}
_WORST_FIRST = (
    *("halted", "unknown", "unowned", "acquiring", "paused", "pausing", "retrying", "draining", "running"),
)


def colour(letter: str) -> str:
    """Return the colour of a worker's letter; yellow for any other mark."""
    number = (LETTERS + SURPLUS).find(letter) if letter else -1
    return PALETTE[number % len(PALETTE)] if number >= 0 else "yellow"


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to draw the matrix."""

    cell: int
    """Width of a cell in columns."""
    by_worker: bool
    """Whether each worker has a row; otherwise one row shows the owners."""
    below: int
    """Rows under the owners: 3 with figures (lag, rate, epoch), 2 with bars, 1 with lag only."""
    group: int = 1
    """Partitions that one cell represents."""
    ruler: bool = True
    """Whether a row above shows partition numbers; otherwise the label shows the first partition."""

    def per_band(self, width: int) -> int:
        """Return the number of cells in one band; one where none fits."""
        return max(1, (width - LABEL) // self.cell)

    def lines(self, partitions: int, workers: int, width: int) -> int:
        """Return the height of the matrix; a number beyond any terminal if it cannot be drawn."""
        cells = -(-partitions // self.group)
        if width < LABEL + self.cell or (self.figures and self.cell <= len(str(partitions - 1))):
            return 10**9
        bands = -(-cells // self.per_band(width))
        between = bands - 1 if self.ruler else 0
        return bands * (self.ruler + (workers if self.by_worker else 1) + self.below) + between

    def padded(self, mark: str) -> str:
        """Return a mark as wide as a cell."""
        return f"{mark:>{max(1, self.cell - 1)}}".ljust(self.cell)

    @property
    def figures(self) -> bool:
        """Whether lag, rate and epoch are shown as numbers."""
        return self.below == 3


def shapes(partitions: int) -> Iterator[Shape]:
    """Yield the shapes, the most detailed one first."""
    for cell in (6, 5, 4):
        yield Shape(cell, by_worker=True, below=3)
    for cell in (3, 2, 1):
        yield Shape(cell, by_worker=True, below=2)
    for cell in (6, 5, 4):
        yield Shape(cell, by_worker=False, below=3)
    yield Shape(1, by_worker=False, below=2)
    yield Shape(1, by_worker=False, below=1, ruler=False)
    for power in range((2 * partitions).bit_length()):
        yield Shape(1, by_worker=False, below=0, group=2**power, ruler=False)


def choose(partitions: int, workers: int, width: int, lines: int) -> Shape:
    """Return the first shape that fits ``width`` x ``lines``.

    A shape that fits in one band is preferred to one of its kind that needs several.
    """
    candidates = list(shapes(partitions))
    for kind in (True, False):
        same = [shape for shape in candidates if shape.by_worker is kind]
        fitting = [shape for shape in same if shape.lines(partitions, workers, width) <= lines]
        whole = [shape for shape in fitting if -(-partitions // shape.group) <= shape.per_band(width)]
        # First narrow columns of figures in one band, then wide ones in several bands, then bars.
        figures = [shape for shape in whole if shape.figures] or [s for s in fitting if s.figures][-1:]
        ruled = [shape for shape in whole if shape.ruler]
        for shape in (*figures, *ruled, *fitting):
            return shape
    return candidates[-1]


def owners(model: Model) -> tuple[WorkerRow, ...]:
    """Return the workers that get a row: all but standbys to which no partition is assigned."""
    wanted = {cell.wanted for cell in model.cells} | {cell.owner for cell in model.cells}
    return tuple(w for w in model.workers if w.member.state != "standby" or w.letter in wanted)


def _orphan(cell: PartitionCell) -> bool:
    """Whether no row of a worker shows this partition."""
    return cell.owner in ("", "?") and cell.wanted in ("", "?")


def draw(model: Model, width: int, lines: int) -> list[Text]:
    """Draw the matrix in at most ``lines`` lines of at most ``width`` columns."""
    workers = owners(model)
    nobody = any(_orphan(cell) for cell in model.cells)
    shape = choose(len(model.cells), len(workers) + nobody, width, lines)
    if not shape.ruler:
        return [*_map(model.cells, shape, width), *_behind(model, width)][:lines]
    drawn: list[Text] = []
    step = shape.per_band(width)
    for start in range(0, len(model.cells), step):
        band = model.cells[start : start + step]
        if drawn:
            drawn.append(Text())
        drawn.append(_ruler(band, shape))
        if shape.by_worker:
            drawn.extend(_worker_line(worker, band, shape) for worker in workers)
            if nobody:
                drawn.append(_nobody_line(band, shape))
        else:
            drawn.append(_owner_line(band, shape))
        drawn.extend(_below(band, model.cells, shape))
    if not shape.figures:
        drawn.extend(_behind(model, width))
    return drawn[:lines]


def _behind(model: Model, width: int) -> list[Text]:
    """List the partitions with the largest lag, since a bar shows no number."""
    behind = sorted((cell for cell in model.cells if cell.view.lag), key=lambda cell: -cell.view.lag)
    line = _label("most behind")
    for cell in behind:
        item = f"{cell.view.partition}: {compact(cell.view.lag)}  "
        if len(line) + len(item) > width:
            break
        line.append(item)
    return [line] if behind else []


def _label(text: str, style: str = "dim") -> Text:
    return Text(f"{text[: LABEL - 1]:<{LABEL}}", style=style)


def _ruler(band: Sequence[PartitionCell], shape: Shape) -> Text:
    line = _label("partition")
    numbers = ""
    for index, cell in enumerate(band):
        text = str(cell.view.partition)
        if shape.cell > len(str(band[-1].view.partition)):
            numbers += f"{text:>{shape.cell - 1}} "
        elif cell.view.partition % 8 == 0 and len(numbers) <= index * shape.cell:
            # The columns are too narrow for their numbers, so only every eighth has one.
            numbers += " " * (index * shape.cell - len(numbers)) + text + " "
    return line.append(numbers[: shape.cell * len(band)], style="dim")


def _worker_line(worker: WorkerRow, band: Sequence[PartitionCell], shape: Shape) -> Text:
    own = colour(worker.letter)
    line = Text(worker.letter, style=f"bold {own}")
    line.append(
        f" {end_of(worker.member.name, LABEL - 3):<{LABEL - 2}}",
        style="red" if worker.member.state == "silent" else "",
    )
    for cell in band:
        if cell.owner == worker.letter:
            _mark(line, cell, worker.letter, shape)
        elif cell.wanted == worker.letter:
            line.append(shape.padded(ACQUIRING), style=f"bold {own}")
        else:
            line.append(shape.padded(OTHER), style="dim")
    return line


def _nobody_line(band: Sequence[PartitionCell], shape: Shape) -> Text:
    line = _label("  nobody")
    for cell in band:
        free = UNKNOWN if cell.view.state == "unknown" else UNOWNED
        text = OTHER if not _orphan(cell) else cell.owner or free
        style = "dim" if text == OTHER else "bold yellow"
        line.append(shape.padded(text), style=style)
    return line


def _mark(line: Text, cell: PartitionCell, letter: str, shape: Shape) -> None:
    """Append the owner's cell: its letter on its colour, and a mark unless the partition runs."""
    mark = MARKS.get(cell.view.state, "")
    style = "bold white on red" if cell.view.state == "halted" else f"bold #101010 on {colour(letter)}"
    text = mark or letter if shape.cell == 1 else letter + mark
    gap = 1 if shape.cell > 2 else 0
    line.append(f"{text:>{shape.cell - gap}}", style=style)
    line.append(" " * gap)


def _owner_line(band: Sequence[PartitionCell], shape: Shape) -> Text:
    line = _label("owner")
    for cell in band:
        _mark(line, cell, cell.owner or UNOWNED, shape)
    return line


def _below(band: Sequence[PartitionCell], every: Sequence[PartitionCell], shape: Shape) -> list[Text]:
    lag, rate = _label("lag"), _label("rate /s")
    lags = max((cell.view.lag for cell in every), default=0)
    rates = max((cell.per_s or 0 for cell in every), default=0)
    write = compact if shape.cell > 4 else tight
    for cell in band:
        if shape.figures:
            waits = UNKNOWN if cell.view.state == "unknown" else write(cell.view.lag)
            lag.append(f"{waits:>{shape.cell - 1}} ", style=_lag_style(cell, lags))
            rate.append(f"{write(cell.per_s):>{shape.cell - 1}} ")
        else:
            lag.append(f"{bar(cell.view.lag, lags):<{shape.cell}}", style=_lag_style(cell, lags))
            rate.append(f"{bar(cell.per_s, rates):<{shape.cell}}", style="green")
    if not shape.figures:
        return [lag, rate][: shape.below]
    room = shape.cell - 1
    # An epoch is a time in ms: its last digits tell apart those of one partition.
    epoch = _label("epoch …" if any(cell.view.epoch >= 10**room for cell in band) else "epoch")
    for cell in band:
        epoch.append(f"{str(cell.view.epoch)[-room:]:>{room}} ", style="dim")
    return [lag, rate, epoch]


def _lag_style(cell: PartitionCell, largest: int) -> str:
    if cell.view.state == "halted":
        return "bold red"
    if cell.view.lag == 0:
        return "dim"
    return "bold yellow" if cell.view.lag == largest else ""


def _map(cells: Sequence[PartitionCell], shape: Shape, width: int) -> list[Text]:
    """Draw one character for one or several partitions; each line begins with its first partition number."""
    groups = [cells[at : at + shape.group] for at in range(0, len(cells), shape.group)]
    # A line of a power of two partitions is easier to count along than one of the full width.
    step = shape.per_band(width)
    even = next((size for size in (512, 256, 128, 64, 32, 16) if size <= step), step)
    if len(range(0, len(groups), even)) <= len(range(0, len(groups), step)):
        step = even
    largest = max((cell.view.lag for cell in cells), default=0)
    drawn: list[Text] = []
    for at in range(0, len(groups), step):
        line = Text(f"{groups[at][0].view.partition:>{LABEL - 2}}  ", style="dim")
        lag = _label("       lag")
        for group in groups[at : at + step]:
            worst = min(group, key=lambda cell: _WORST_FIRST.index(cell.view.state))
            letters = {cell.owner for cell in group}
            letter = worst.owner if len(letters) == 1 else "+"
            _mark(line, worst, letter or UNOWNED, shape)
            lag.append(bar(max(cell.view.lag for cell in group), largest), style=_lag_style(worst, largest))
        drawn.extend([line, lag] if shape.below else [line])
    return drawn
