"""A worker's log at level debug: the simulator's transcript, line by line, and each commit and lock."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import SpawnWorker
from tests.helpers import wait_for
from tests.simulator.scenario import play, read

APP = """
from dataclasses import dataclass
from streamworker import App

app = App("shop")

@dataclass
class Order:
    number: int

orders = app.stream("orders", Order, partitions=1)

@app.processor(orders, batch=100)
async def price(batch: list[Order]) -> list[Order]:
    return batch
"""

SCENARIO = """# A worker that comes and goes
given: membership, 1 partition
    0 ms  w1 starts
  500 ms  w1 is asked to leave
  600 ms  end"""


def alike(line: str) -> str:
    """Return a line without what differs from run to run: numbers of time, the ending of an id."""
    line = re.sub(r"w1\.\w+", "w1.N", line)
    line = re.sub(r"(generation|generation is|epoch) \d+", r"\1 N", line)
    return re.sub(r"after entry [\d-]+", "after entry N", line)


def test_the_log_of_a_real_worker_reads_like_the_trace_of_the_simulator(
    spawn: SpawnWorker, write_app: Callable[[str, str], Path]
) -> None:
    """The same scenario on a real server and in the model: the same events, effects and words."""
    write_app("shop", APP)
    worker = spawn("run", "shop:app", "--name", "w1", "--log-level", "debug", "--log-format", "json")
    wait_for(lambda: "PostControl: acquired" in worker.log(), "it has the partition")
    worker.terminate()
    assert worker.wait() == 0
    records = [json.loads(line) for line in worker.log().splitlines() if line.startswith("{")]
    steps = [record for record in records if record["event"].startswith("w1  ")]
    assert {record["level"] for record in steps} == {"debug"}
    logged = [alike(record["event"].removeprefix("w1  ")) for record in steps]

    scenario, violations = play(read(SCENARIO))
    assert violations == ()
    traced = [alike(line.split("w1  ")[-1].strip()) for line in scenario.transcript if "(" not in line]
    assert set(traced) <= set(logged)
    # While it leaves, drained runners and answers may come in any order; until then there is but one.
    joining = traced[: traced.index("StopRequested")]
    assert len(joining) > 8
    # A message may overtake the answer that says the same; then the document is read once more.
    assert [line for line in dict.fromkeys(logged) if line in joining] == joining


def test_a_log_tells_which_owner_committed_what_and_when(
    spawn: SpawnWorker, write_app: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """The lock, each try of a commit and its answer, and the release, by a clock that workers share."""
    write_app("shop", APP)
    worker = spawn("run", "shop:app", "--name", "w1", "--log-level", "debug", "--log-format", "json")
    (tmp_path / "orders.jsonl").write_text('{"number": 1}\n{"number": 2}\n')
    assert spawn("send", "shop:orders", "orders.jsonl").wait() == 0
    wait_for(lambda: "commit_answered" in worker.log(), "the records are committed")
    worker.terminate()
    assert worker.wait() == 0
    lines = [json.loads(line) for line in worker.log().splitlines() if line.startswith("{")]

    def told(event: str) -> list[dict[str, Any]]:
        return [line for line in lines if line["event"] == event]

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
