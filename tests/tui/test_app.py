"""The loop around the live view: keys, pauses, outages."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from streamworker.core.snapshot import GroupSnapshot, TableView
from streamworker.errors import BackendUnavailable
from streamworker.spark.driver.java import REMEDY
from streamworker.tui import app
from tests.tui.groups import group

TITLES = {"audit": "shop orders → audit", "price": "shop orders → price"}


def text_of(viewer: app.Viewer, now_ms: int = 0) -> str:
    """Render what the viewer shows."""
    console = Console(width=80, height=24, color_system=None, file=io.StringIO(), force_terminal=True)
    with console.capture() as captured:
        console.print(viewer.frame(80, 24, now_ms), end="")
    return captured.get()


def test_before_the_first_snapshot_it_says_what_it_waits_for_and_why() -> None:
    """Not an empty screen; Redis that never answered is named at once."""
    viewer = app.Viewer(TITLES)
    assert "Waiting for shop orders → audit" in text_of(viewer)
    viewer.failed(BackendUnavailable("No answer from redis at host:6379."))
    assert "host:6379" in text_of(viewer)


def test_what_failed_beside_the_groups_stands_above_them() -> None:
    """Before the first snapshot and after it, whole: what to do about it comes last."""
    failures: list[str] = []
    viewer = app.Viewer(TITLES, lambda: failures)
    failures.append(f"spark ended with 3. Error: There is no Java. {REMEDY}")
    assert failures[0] in " ".join(text_of(viewer).replace("│", "").split())
    viewer.arrived("audit", group(partitions=4, workers=2), now_ms=1_000)
    shown = text_of(viewer)
    assert failures[0] in " ".join(shown.split())
    assert "A w1" in shown
    assert len(shown.splitlines()) == 24


def test_an_outage_leaves_the_last_picture_under_a_banner_until_redis_is_back() -> None:
    """The age counts from the last answer; the next answer takes the banner away."""
    viewer = app.Viewer(TITLES)
    viewer.arrived("audit", group(partitions=4, workers=2), now_ms=1_000)
    viewer.failed(BackendUnavailable("No answer from redis at host:6379.", remedy="Is it up?"))
    shown = text_of(viewer, now_ms=8_500)
    assert "What you see is 7.5 s old. No answer from redis at host:6379." in shown.splitlines()[2]
    assert "A w1" in shown and len(shown.splitlines()) == 24
    viewer.arrived("audit", group(partitions=4, workers=2, at_ms=109_000), now_ms=9_000)
    assert "What you see" not in text_of(viewer, now_ms=9_000)


def test_keys_switch_the_processor_round_and_round() -> None:
    """Past the last one comes the first."""
    viewer = app.Viewer(TITLES)
    viewer.press("next")
    assert viewer.target == "price"
    viewer.press("next")
    assert viewer.target == "audit"
    viewer.press("previous")
    assert viewer.target == "price"


def test_a_key_shows_all_processors_with_a_line_for_each() -> None:
    """With rate, lag, tables and what fails; an arrow goes back to one of them."""
    viewer = app.Viewer(TITLES)
    viewer.press("overview")
    assert "Waiting for shop" in text_of(viewer)
    for at_ms in (1_000, 3_000):
        audit = group(partitions=2, workers=2, lag=7, at_ms=at_ms, committed=at_ms)
        failing = replace(audit.partitions[1], state="halted", reason="ValueError: x")
        halted = replace(
            audit, partitions=(audit.partitions[0], failing), tables=(TableView("seen", 9, 800),)
        )
        viewer.arrived("audit", replace(audit, processor="audit"), 0)
        viewer.arrived("price", halted, 0)
    lines = text_of(viewer).splitlines()
    assert len(lines) == 24
    (one,) = [line for line in lines if "running" in line and "audit" in line]
    assert one.split()[1:11] == ["orders", "audit", "2", "2:", "2", "running", "14", "in", "7", "ms"]
    assert "2.0k/s" in one
    (other,) = [line for line in lines if "1 halted" in line]
    assert "1 running, 1 halted" in other
    assert any("price └─ seen  9 keys  800 B" in line for line in lines)
    assert "o one" in lines[-1]
    viewer.failed(BackendUnavailable("No answer from redis at host:6379."))
    assert "What you see is 8.5 s old. No answer" in text_of(viewer, now_ms=8_500)
    viewer.press("next")
    assert not viewer.overview
    assert "rebalances" in text_of(viewer)


def test_more_processors_than_lines_are_counted_and_fit_the_terminal() -> None:
    viewer = app.Viewer({f"p{n}": f"shop orders → p{n}" for n in range(40)})
    viewer.press("overview")
    for target in viewer.targets:
        viewer.arrived(target, group(partitions=1, workers=1), 0)
    lines = text_of(viewer).splitlines()
    assert len(lines) == 24
    assert "and 22 more lines" in lines[-3]


def test_rates_start_again_after_an_outage() -> None:
    """An average over the outage would be shown as if it were the rate of now."""
    viewer = app.Viewer(TITLES)
    viewer.arrived("audit", group(partitions=1, workers=1, at_ms=1_000), 0)
    viewer.arrived("audit", group(partitions=1, workers=1, at_ms=61_000, committed=60_000), 60_000)
    assert "1.0k/s" not in text_of(viewer)


@pytest.mark.anyio
async def test_a_single_frame_for_a_pipe_has_rates() -> None:
    """Without a terminal there is one frame, and it is taken from two snapshots."""
    count = 0

    async def take() -> GroupSnapshot:
        nonlocal count
        count += 1
        return group(partitions=4, workers=2, at_ms=1_000 * count, committed=100 * count)

    console = Console(width=80, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        await app.frame_once(take, console=console)
    assert "out 400/s" in captured.get()
