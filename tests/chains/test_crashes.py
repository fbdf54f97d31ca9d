"""A chain whose server loses its last writes again and again, while its worker lives on elsewhere."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from streamworker.dev.server import EmbeddedServer
from streamworker.redisio.keys import StreamKeys
from tests.chains.losses import DECODERS, PARTITIONS
from tests.chains.scene import ChainScene
from tests.chaos.forked import Forge
from tests.conftest import REDIS_SERVER
from tests.durability.pair import cut, newest_aof
from tests.helpers import wait_for
from tests.raw import opened, records_of

STREAMS = ("items", "priced", "summed")
BACKLOG = {"ROOM": "100", "REPORT_S": "0.01"}
"""So that the last stream is full, and messages wait in the outbox before it."""

LAST = StreamKeys("chain", "summed").events(0)


def numbers_in(client: Any, stream: str) -> dict[str, list[int]]:
    """Return what a stream holds of each customer, in order."""
    found = defaultdict[str, list[int]](list)
    for partition in range(PARTITIONS[stream]):
        for fields in records_of(client, StreamKeys("chain", stream).events(partition)):
            record = DECODERS[stream].decode(fields[b"v"])
            found[record.customer].append(record.n)
    return found


@pytest.mark.full("crashes at each step")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("crashes", [4, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("name", "environ"),
    [
        pytest.param("valkey", BACKLOG, id="valkey"),
        pytest.param("redis7", {}, id="redis7", marks=pytest.mark.soak),
        pytest.param("valkey", {}, id="valkey, no backlog", marks=pytest.mark.soak),
        pytest.param("redis7", BACKLOG, id="redis7, backlog", marks=pytest.mark.soak),
    ],
)
def test_a_chain_holds_what_its_source_holds_whatever_the_server_lost(
    tmp_path: Path, crew: Forge, name: str, environ: dict[str, str], crashes: int
) -> None:
    """Each record once and in order, with nobody's help, and nothing is told as lost that is there."""
    binary = REDIS_SERVER if name == "redis7" else None
    with EmbeddedServer(tmp_path, binary, port=0) as server, opened(server.url) as client:
        scene = ChainScene(server.url, crew, tmp_path, seed=crashes)
        worker = scene.worker(RETENTION="2 hours", **environ)
        for _ in range(crashes):
            scene.send(300)
            before = client.xlen(LAST)
            wait_for(lambda before=before: client.xlen(LAST) > before, "the chain goes on", 60)  # type: ignore[misc]
            server.kill()
            path = newest_aof(tmp_path)
            lost = scene.random.choice([300, 2_000, 8_000, 30_000])
            cut(path, min(path.stat().st_size // 2, lost))
            server.start()

        def waiting() -> list[tuple[int, int]]:
            return [(each.lag, each.outbox) for each in scene.snapshots()]

        scene.send(300)
        wait_for(lambda: not any(map(any, waiting())), "all has gone through the chain", 240)
        kept = {stream: numbers_in(client, stream) for stream in STREAMS}
        worker.terminate()
        assert worker.wait() == 0
    assert all(numbers == sorted(set(numbers)) for numbers in kept["items"].values())
    assert kept["priced"] == kept["summed"] == kept["items"]
    assert scene.told("forwarded_records_lost", "outbox_diverged") == []
