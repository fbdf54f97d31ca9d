"""Mistakes in how a lane of an outbox decides, planted in a copy of the project: its tests find each."""

from tests.planting import PlantedMistakes

TESTS = ("tests/core/test_outbox.py", "tests/core/test_outbox_lane.py")
LANE = "streamworker/core/data/outbox.py"
PLANTS = {
    "two round trips forward a lane at once, as when its target had moved to another node": (
        LANE,
        "() if self.is_busy else self.messages",
        "self.messages",
    ),
    "what is committed during a comparison is forgotten": (LANE, "message.number > through", "False"),
    "a message without an answer counts as taken": (
        LANE,
        "if reply.code is not ForwardCode.TAKEN:",
        "if reply.code in (ForwardCode.FULL, ForwardCode.OTHER):",
    ),
    "a target behind the first message is taken for one that has them all": (
        LANE,
        "(stands != message.through)",
        "0",
    ),
}


class TestPlanted(PlantedMistakes):
    """The tests pass without a mistake, and find each."""

    tests = TESTS
    plants = PLANTS
