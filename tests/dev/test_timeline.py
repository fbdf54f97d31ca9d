"""The picture of who owned which partition when."""

from dataclasses import replace

from streamworker.core.snapshot import GroupSnapshot
from streamworker.dev.timeline import Timeline
from tests.tui.groups import group


def snapshot(members: dict[str, str], owners: list[str | None]) -> GroupSnapshot:
    """Make a snapshot with these members (id to name) and the owner of each partition."""
    calm = group(partitions=len(owners), workers=len(members))
    named = zip(calm.members, members.items(), strict=True)
    return replace(
        calm,
        members=tuple(replace(each, id=id_, name=name) for each, (id_, name) in named),
        partitions=tuple(
            replace(view, owner=owner) for view, owner in zip(calm.partitions, owners, strict=True)
        ),
    )


def drawn(timeline: Timeline, width: int = 25) -> list[str]:
    """Return the picture as plain lines."""
    return [line.plain for line in timeline.render(width)]


def test_each_row_shows_who_held_the_partition() -> None:
    """Two workers share from the middle on; a partition without an owner is a dot."""
    timeline = Timeline(partitions=2)
    for at_ms in range(0, 1_000, 50):
        timeline.sample(at_ms, snapshot({"a.1": "w1"}, ["a.1", None]))
    for at_ms in range(1_000, 2_001, 50):
        timeline.sample(at_ms, snapshot({"a.1": "w1", "b.1": "w2"}, ["a.1", "b.1"]))

    lines = drawn(timeline)

    assert lines[1] == "   0 " + "1" * 20
    assert lines[2] == "   1 " + "." * 10 + "2" * 10


def test_a_stream_that_grows_has_other_rows_from_then_on() -> None:
    """Those that it had are empty when the group is done with them."""
    timeline = Timeline(partitions=2)
    for at_ms in range(0, 2_001, 50):
        now = snapshot({"a.1": "w1"}, ["a.1", "a.1"])
        timeline.sample(at_ms, replace(now, partitions=now.partitions[at_ms >= 1_000 :][:1]))

    assert drawn(timeline)[1:3] == ["   0 " + "1" * 10 + " " * 10, "   1 " + " " * 10 + "1" * 10]


def test_a_dead_member_is_still_known_by_its_name() -> None:
    """It is no member any more, but its lock is not taken over yet."""
    timeline = Timeline(partitions=1)
    timeline.sample(0, snapshot({"a.1": "w1"}, ["a.1"]))
    timeline.sample(1_000, snapshot({}, ["a.1"]))

    assert drawn(timeline)[1] == "   0 " + "1" * 20


def test_what_happened_stands_above_the_picture_and_in_the_legend() -> None:
    """One character at its time, and what it means below."""
    timeline = Timeline(partitions=1)
    timeline.sample(0, snapshot({"a.1": "w1"}, ["a.1"]))
    timeline.mark(500, "x", "killed with SIGKILL")
    timeline.sample(1_000, snapshot({"a.1": "w1"}, ["a.1"]))

    lines = drawn(timeline)

    assert lines[0][5:].index("x") == 10
    assert "x killed with SIGKILL" in lines[-1]
    assert "1 w1" in lines[-1]


def test_two_workers_with_one_last_letter_get_different_symbols() -> None:
    """w1 and x1 are told apart."""
    timeline = Timeline(partitions=2)
    timeline.sample(0, snapshot({"a.1": "w1", "b.1": "x1"}, ["a.1", "b.1"]))
    timeline.sample(1, snapshot({"a.1": "w1", "b.1": "x1"}, ["a.1", "b.1"]))

    first, second = (line[5] for line in drawn(timeline)[1:3])

    assert first != second


def test_a_picture_of_nothing_is_empty() -> None:
    """Without samples there is nothing to draw."""
    assert drawn(Timeline(partitions=3)) == []
