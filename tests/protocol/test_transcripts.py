"""What the cores write in each scenario is what people have read and found right.

``pytest tests/protocol --rewrite`` writes the transcripts anew; then read what has changed. How a
scenario is written stands in ``tests/simulator/scenario.py``.
"""

from itertools import count
from pathlib import Path

import pytest

from streamworker.errors import ConfigurationError
from tests.planting import Plant, each_found_by, planted
from tests.protocol.steps import STEPS
from tests.simulator.scenario import Scenario, play, read

PATHS = sorted(Path(__file__).parent.glob("*.txt"))
WIDTH = 130
LINES = 100


def scenario(path: Path) -> Scenario:
    return read(path.read_text("utf-8"))


def covered(one: Scenario) -> tuple[str, ...]:
    """Return the steps of other documents that a scenario covers."""
    lines = (line.removeprefix("covers:") for line in one.about if line.startswith("covers:"))
    return tuple(word for line in lines for word in line.split())


every_one = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@every_one
def test_the_cores_write_this_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    """Line by line; and an observer finds nothing wrong with what happened."""
    text = path.read_text("utf-8")
    told, violations = play(read(text))
    if request.config.getoption("--rewrite"):
        path.write_text(str(told), "utf-8")
        text = str(told)
    assert str(told).splitlines() == text.splitlines(), "if this is right: pytest tests/protocol --rewrite"
    assert violations == ()


@every_one
def test_a_transcript_can_be_read_at_once(path: Path) -> None:
    """On a screen or two, with a title, some prose and a result."""
    one = scenario(path)
    assert one.title[0].isupper() and one.title[-1] not in ".:"
    assert any(line and not line.startswith("covers:") for line in one.about)
    assert covered(one) and one.transcript and one.result
    assert len(one.transcript) <= LINES
    assert max(map(len, [*one.about, *one.transcript])) <= WIDTH


@pytest.mark.parametrize("step", STEPS)
def test_each_step_of_the_sources_and_each_race_has_a_transcript(step: str) -> None:
    """A scenario names in its line ``covers:`` what it shows."""
    shown = {step for path in PATHS for step in covered(scenario(path))}
    assert step in shown, f"no transcript shows {step}: {STEPS[step]}"


@every_one
def test_what_a_transcript_covers_exists(path: Path) -> None:
    """A step that was misspelt would be thought covered."""
    assert set(covered(scenario(path))) <= set(STEPS)


@each_found_by("transcript")
def test_a_mistake_in_the_protocol_changes_a_transcript(plant: Plant) -> None:
    """What is planted for the simulator's checkers is seen here as well, by whoever reads."""
    right = scenario(Path(__file__).with_name(f"{plant.found_by['transcript']}.txt"))
    with planted(plant):
        wrong, _ = play(right)
    assert (wrong.transcript, wrong.result) != (right.transcript, right.result)


@pytest.mark.parametrize(
    "text",
    [
        "given: membership, 4 partitions\n  0 ms  w1 starts",
        "# A title\n  0 ms  w1 starts",
        "# A title\ngiven: membership, 4 partitions\n  w1 starts",
        "# A title\ngiven: membership, 4 partitions\n  0 ms  w1 explodes",
        "# A title\ngiven: membership\n  0 ms  w1 starts",
        "# A title\ngiven: paxos, 4 partitions\n  0 ms  w1 starts",
        "# A title\ngiven: membership, 4 partitions, magic\n  0 ms  w1 starts",
        "# A title\ngiven: membership, 0 partitions\n  0 ms  w1 starts",
        "# A title\ngiven: membership, 4 partitions, batches of 0 ms\n  0 ms  w1 starts",
        "# A title\ngiven: membership, 4 partitions, entries every 0 ms\n  0 ms  w1 starts",
        "# A title\ngiven: membership, 4 partitions\n  0 ms  w1 is killed",
        "# A title\ngiven: membership, 4 partitions\n  9 ms  w1 starts\n  5 ms  w2 starts",
        "# A title\ngiven: membership, 4 partitions\n  0 ms  an entry comes to partition 4",
        "# A title\ngiven: membership, 4 partitions\n  0 ms  w1 starts\n  1 ms  w1 hangs in partition 0",
        "# A title\ngiven: claim, 4 partitions\n  0 ms  the stream grows to 3 partitions",
        "# A title\ngiven: claim, 4 partitions\n  0 ms  in 7 ms Redis fails over to a replica as it is now",
    ],
    ids=count(1),
)
def test_a_scenario_that_cannot_be_understood_is_an_error_with_a_remedy(text: str) -> None:
    """Nothing is passed over: a step with a slip of the pen would show something else."""
    with pytest.raises(ConfigurationError) as raised:
        play(read(text))
    assert raised.value.remedy
