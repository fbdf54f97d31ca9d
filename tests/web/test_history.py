"""What the server of the page keeps, and what it makes of snapshots."""

import msgspec

from streamworker.web.history import HOUR_MS, History
from tests.web.groups import START_MS, at, fed


def test_an_hour_is_kept_and_no_more() -> None:
    """Of the charts each second, and of the matrix each change."""
    history, ends = History(), 2 * HOUR_MS // 1000
    for second in range(0, ends, 10):
        history.add(at(second, 8, 3))
    points = history.points
    assert points["t"][0] == history.frame["t"] - HOUR_MS
    assert len({len(values) for values in points.values()}) == 1
    assert history.at(START_MS) is None
    past = history.at(history.frame["t"] - HOUR_MS)
    assert past is not None
    assert past["state"] == history.frame["state"]


def test_the_matrix_of_a_time_is_the_one_that_stood_then() -> None:
    """Before, during and after the death of a worker."""
    history = History()
    for second in range(20):
        history.add(at(second, 8, 3))
    before, during = history.at(START_MS + 9_999), history.at(START_MS + 10_000)
    assert before is not None
    assert during is not None
    assert [each["name"] for each in before["workers"]] == ["w1", "w2", "w3"]
    assert [each["name"] for each in during["workers"]] == ["w1", "w3"]
    assert (before["state"], during["state"]) == ("P...RH..", "P..AAA..")
    assert history.at(START_MS - 1) is None
    assert [each["cause"] for each in history.record][:1] == ["death"]


def test_a_frame_of_a_large_group_is_small() -> None:
    """A thousand partitions and 64 workers are some kilobytes each second."""
    feed = fed(at(0, 1024, 64), at(12, 1024, 64))
    frame = next(iter(feed._frames.values()))
    assert len(frame) < 40_000
    group = msgspec.json.decode(frame.partition(b"data: ")[2])["group"]
    assert len(group["state"]) == len(group["owner"]) == len(group["lags"]) == 1024
