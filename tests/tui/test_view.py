"""How the live view looks, at sizes from a small terminal to a wall."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from streamworker.core.snapshot import GroupSnapshot, RetryView
from streamworker.tui import matrix, model, view
from tests.tui.groups import group


def frame(
    snapshot: GroupSnapshot,
    width: int = 80,
    height: int = 24,
    tabs: view.Tabs | None = None,
) -> list[str]:
    """Render without colour, as a terminal without colour or a colour-blind reader sees it."""
    console = Console(width=width, height=height, color_system=None, file=io.StringIO(), force_terminal=True)
    rows = model.rows(None, snapshot)
    with console.capture() as captured:
        console.print(view.render(rows, width, height, tabs), end="")
    return captured.get().rstrip("\n").split("\n")


SIZES = [(80, 24), (100, 30), (132, 43), (220, 60), (60, 16)]


@pytest.mark.parametrize(
    ("width", "height", "partitions", "workers"),
    [
        (*size, partitions, (0, 3, 24)[(at + place) % 3])
        for at, size in enumerate(SIZES)
        for place, partitions in enumerate([1, 16, 64, 1024])
    ],
)
def test_a_frame_fills_the_terminal_exactly(width: int, height: int, partitions: int, workers: int) -> None:
    """A frame that is a line too high would scroll; one that is too wide would wrap."""
    lines = frame(group(partitions=partitions, workers=workers, lag=12_345), width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_sixteen_partitions_on_a_small_terminal_show_every_figure() -> None:
    """At 80 x 24: a row for each worker, and lag, rate and epoch for each partition."""
    text = "\n".join(frame(group(partitions=16, workers=4, standbys=2, lag=321)))
    assert "D w4" in text
    assert "4 workers + 2 standby" in text
    for part in ("lag         321", "rate /s", "epoch …", "standby", "beat", "lake"):
        assert part in text


def test_sixty_four_partitions_keep_a_row_for_each_worker() -> None:
    """One character a partition, and bars for lag and rate."""
    text = "\n".join(frame(group(partitions=64, workers=4, lag=5)))
    assert "A" * 16 + matrix.OTHER * 48 in text
    assert "█" * 64 in text
    assert "most behind" in text


def test_a_thousand_partitions_are_condensed_and_the_worst_state_wins() -> None:
    """Where one character stands for several partitions, a halted one must not disappear."""
    snapshot = group(partitions=1024, workers=4)
    views = list(snapshot.partitions)
    views[700] = replace(views[700], state="halted", reason="boom")
    text = "\n".join(frame(replace(snapshot, partitions=tuple(views))))
    assert matrix.HALTED in text.split("members")[0]
    assert "halted: partition 700: boom" in text


def test_a_reader_whose_query_failed_says_since_when_and_why() -> None:
    """It has no rate to show; it has read since as soon as the reason is gone."""
    snapshot = group(partitions=4, workers=2)
    (reader,) = snapshot.readers
    failed = replace(reader, failed="no such user", failed_ms=snapshot.taken_ms - 180_000)
    text = "\n".join(frame(replace(snapshot, readers=(failed,))))
    assert "lake FAILED 3 m 00 s ago: no such user" in text


def test_a_failing_record_is_shown_with_its_error_and_the_time_of_the_next_attempt() -> None:
    """In the headline, and by a mark at its partition; the other partitions look as before."""
    snapshot = group(partitions=4, workers=2)
    views = list(snapshot.partitions)
    retry = RetryView(9, snapshot.taken_ms - 60_000, snapshot.taken_ms + 38_000)
    views[1] = replace(views[1], state="retrying", reason="ConnectionError: refused", retry=retry)
    text = "\n".join(frame(replace(snapshot, partitions=tuple(views)), width=120))
    assert "A" + matrix.RETRYING in text
    assert re.search(
        r"retrying: partition 1: since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d \(attempt", text
    )
    assert "(attempt 9, next in 38.0 s): ConnectionError: refused" in text


def test_a_worker_that_is_silent_does_not_count() -> None:
    snapshot = group(partitions=4, workers=2, standbys=1)
    first, *others = snapshot.members
    text = "\n".join(frame(replace(snapshot, members=(replace(first, state="silent"), *others))))
    assert "1 worker + 1 standby" in text


def test_states_can_be_told_apart_without_colour() -> None:
    """Letters and marks carry the meaning; the frame is rendered without any colour here."""
    snapshot = group(partitions=4, workers=2)
    first, second, third, fourth = snapshot.partitions
    snapshot = replace(
        snapshot,
        partitions=(
            replace(first, state="draining", assigned="w2"),
            replace(second, state="halted", reason="ValueError: x"),
            replace(third, state="acquiring", owner=None),
            replace(fourth, state="unowned", owner=None, assigned=None),
        ),
    )
    text = "\n".join(frame(snapshot))
    first_row = next(line for line in text.split("\n") if "A w1" in line)
    second_row = next(line for line in text.split("\n") if "B w2" in line)
    assert "A" + matrix.DRAINING in first_row
    assert "A" + matrix.HALTED in first_row
    assert second_row.count(matrix.ACQUIRING) == 2
    assert "nobody" in text


def test_more_members_than_lines_are_counted_not_dropped_in_silence() -> None:
    """Twenty-four workers do not fit beside the matrix of a small terminal."""
    text = "\n".join(frame(group(partitions=16, workers=16, standbys=8)))
    assert "more, 8 standby" in text
    assert "16 workers + 8 standby" in text


def test_several_processors_have_a_line_of_tabs() -> None:
    """The keys to switch are only named where there is something to switch to."""
    several = frame(group(partitions=4, workers=1), tabs=view.Tabs(("audit", "price"), 1, True))
    assert "audit" in several[0]
    assert "←/→" in several[-1]
    assert "PAUSED" in several[-1]
    assert "←/→" not in frame(group(partitions=4, workers=1))[-1]


@pytest.mark.parametrize("partitions", [1, 7, 16, 64, 256, 1024, 4096])
@pytest.mark.parametrize("lines", [4, 10, 30])
def test_there_is_a_shape_for_every_number_of_partitions(partitions: int, lines: int) -> None:
    """The matrix never takes more lines than it is given, and never gives up."""
    rows = model.rows(None, group(partitions=partitions, workers=5))
    drawn = matrix.draw(rows, 76, lines)
    assert 1 <= len(drawn) <= lines
    assert all(line.cell_len <= 76 for line in drawn)


@pytest.mark.parametrize("width", [1, 12])
def test_a_terminal_too_narrow_for_a_cell_shows_all_partitions_as_one(width: int) -> None:
    assert len(matrix.draw(model.rows(None, group(partitions=16, workers=2)), width, 4)) == 1
