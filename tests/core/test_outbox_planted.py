"""Mistakes in how a queue of an outbox decides, planted in a copy of the project: its tests find each."""

import pytest

from tests.planting import PlantedMistakes

pytestmark = pytest.mark.full("runs the property of a lane for each mistake")

TESTS = ("tests/core/test_outbox.py", "tests/core/test_outbox_queue.py")
OUTBOX = "streamworker/core/data/outbox.py"
PLANTS = {
    "two round trips forward a queue at once, as when its target had moved to another node": (
        OUTBOX,
        "() if self.is_busy else self.messages",
        "self.messages",
    ),
    "what is committed during a comparison is forgotten": (OUTBOX, "message.number > through", "False"),
    "a message without an answer counts as taken": (
        OUTBOX,
        "if reply.code is not ForwardCode.TAKEN:",
        "if reply.code in (ForwardCode.FULL, ForwardCode.OTHER):",
    ),
    "a target behind the first message is taken for one that has them all": (
        OUTBOX,
        "(stands != message.through)",
        "0",
    ),
}


class TestPlanted(PlantedMistakes):
    """The tests pass without a mistake, and find each."""

    tests = TESTS
    plants = PLANTS
