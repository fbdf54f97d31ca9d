"""A worker's log at level debug: the simulator's transcript, line by line, and each commit and lock."""

import re

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from streamworker import App
from streamworker.testing import local_worker
from tests.runtime.workbench import Order
from tests.simulator.scenario import play, read

pytestmark = pytest.mark.anyio

SCENARIO = """# A worker that comes and goes
given: membership, 1 partition
    0 ms  w1 starts
  500 ms  w1 is asked to leave
  600 ms  end"""


@pytest.fixture
async def logged(redis_url: str, caplog: pytest.LogCaptureFixture) -> list[EventDict]:
    """What a worker logs that joins, handles two orders in one commit and leaves."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, partitions=1)

    @app.processor(orders, batch=100)
    async def price(batch: list[Order]) -> list[Order]:
        return batch

    await orders.send_many([Order(1), Order(2)])
    caplog.set_level("DEBUG", "streamworker.trail")
    with capture_logs() as logs:
        async with local_worker(app, url=redis_url, name="w1") as worker:
            await worker.until_drained()
    return list(logs)


def alike(line: str) -> str:
    """Return a line without what differs from run to run: numbers of time, the ending of an id."""
    line = re.sub(r"w1\.[\w-]+", "w1.N", line)
    line = re.sub(r"(generation|generation is|epoch) \d+", r"\1 N", line)
    return re.sub(r"after entry [\d-]+", "after entry N", line)


async def test_the_log_of_a_real_worker_reads_like_the_trace_of_the_simulator(
    logged: list[EventDict],
) -> None:
    """The same scenario on a real server and in the model: the same events, effects and words."""
    steps = [line for line in logged if line["event"].startswith("w1  ")]
    assert {line["log_level"] for line in steps} == {"debug"}
    said = [alike(line["event"].removeprefix("w1  ")) for line in steps]

    scenario, violations = play(read(SCENARIO))
    assert violations == ()
    traced = [alike(line.split("w1  ")[-1].strip()) for line in scenario.transcript if "(" not in line]
    assert set(traced) <= set(said)
    # While it leaves, drained runners and answers may come in any order; until then there is but one.
    joining = traced[: traced.index("StopRequested")]
    assert len(joining) > 8
    # A message may overtake the answer that says the same; then the document is read once more.
    assert [line for line in dict.fromkeys(said) if line in joining] == joining


async def test_a_log_tells_which_owner_committed_what_and_when(logged: list[EventDict]) -> None:
    """The lock, each try of a commit and its answer, and the release, by a clock that workers share."""

    def told(event: str) -> list[EventDict]:
        return [line for line in logged if line["event"] == event]

    (acquired,) = told("lock_acquired")
    (released,) = told("lock_released")
    sent, answered = told("commit_sent"), told("commit_answered")
    assert sum(line["rows"] for line in sent) == 2
    assert {line["code"] for line in answered} == {"OK"}
    owner = acquired["owner"]
    assert owner.startswith("w1.")
    assert {line["owner"] for line in [released, *sent, *answered]} == {owner}
    assert {line["epoch"] for line in [*sent, *answered]} == {acquired["epoch"]}
    assert sent[0]["previous"] == acquired["checkpoint"]
    times = [acquired, *sent[:1], *answered[:1], released]
    assert [line["at_ms"] for line in times] == sorted(line["at_ms"] for line in times)
