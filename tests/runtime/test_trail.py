"""A worker's log at level debug says what became of each commit and each lock."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import SpawnWorker
from tests.helpers import wait_for

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
