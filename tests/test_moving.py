"""The pages of docs/moving, followed word for word: what one had, and streamworker beside it."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from streamworker.dev.server import EmbeddedServer
from tests.following import Reader
from tests.helpers import wait_for
from tests.spark.processes import START_S

PAGES = Path(__file__).parent.parent / "docs" / "moving"

pytestmark = pytest.mark.full("starts programs of other libraries, and workers")


def topic_of_orders(kafka: Any) -> Any:
    """Return a client that is a broker for others, too, with 100 orders in its topic."""
    client = kafka.Producer({"test.mock.num.brokers": 1})
    for n in range(100):
        customer = f"customer-{n % 3}"
        client.produce("orders", json.dumps({"customer": customer, "amount": n}), key=customer)
    assert client.flush(START_S) == 0
    return client


@pytest.mark.timeout(600)  # the page on runnel installs it, a package of 2020
@pytest.mark.parametrize(
    ("page", "needs", "billed"),
    [
        ("celery", "celery", {"shop": range(100)}),
        ("faust", "streamworker", {"shop": sorted([*range(1, 34)] * 3)}),
        ("kafka", "confluent_kafka", {"before": range(100), "shop": range(100)}),
        ("kafka-streams", "streamworker", {"shop": [33] * 3}),
        ("runnel", "benchmarks.runnel", {"before": range(100), "shop": range(100)}),
        ("xreadgroup", "redis", {"before": range(100), "trial": range(100), "shop": range(100, 150)}),
        ("faststream", "faststream", {"before": range(100), "shop": range(100)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_one_had_runs_beside_ours(
    page: str,
    needs: str,
    billed: Mapping[str, Iterable[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each program has billed its orders, each once, when the page ends."""
    peer = pytest.importorskip(needs)

    def numbers(program: str) -> list[int]:
        lines = re.findall(r"billed \S+ (\d+)", (tmp_path / "logs" / program).read_text("utf-8"))
        return sorted(map(int, lines))

    with EmbeddedServer(port=0) as server:
        monkeypatch.setenv("STREAMWORKER_REDIS_URL", server.url)
        if needs == "confluent_kafka":
            producer = topic_of_orders(peer)
            (broker,) = producer.list_topics().brokers.values()
            monkeypatch.setenv("KAFKA_BROKERS", f"{broker.host}:{broker.port}")
        with Reader(PAGES / f"{page}.md", tmp_path) as reader:
            if needs == "benchmarks.runnel":
                python = peer.runnel_python() or pytest.skip("there is no Python 3.8 here")
                (reader.folder / "old").symlink_to(python.parent.parent)
            for _ in reader.follow():
                pass
            wait_for(
                lambda: all(numbers(program) == list(orders) for program, orders in billed.items()),
                f"the programs of {page} have billed their orders",
                timeout_s=START_S,
            )
