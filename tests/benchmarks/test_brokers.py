"""``python -m benchmarks brokers``: RabbitMQ streams and NATS JetStream, where they are installed."""

import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks import brokers as processes
from benchmarks.brokers import BROKERS, NATS, RABBITMQ, Broker
from benchmarks.contest import Contest
from benchmarks.measuring.ground import BenchGround, open_ground
from benchmarks.measuring.programs import BenchFailed
from benchmarks.scenes import brokers as scene

RECORDS = 3000


@pytest.mark.anyio
async def test_a_broker_that_is_not_installed_is_left_out_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is started, not even a server of ours; and a broker without its client is left out, too."""
    monkeypatch.setattr(processes, "BEFORE_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    contest = Contest(BenchGround.__new__(BenchGround))
    assert await scene.brokers(contest) == []
    assert contest.left_out == [
        "RabbitMQ streams: rabbitmq-server is not installed. Run: apt-get install rabbitmq-server",
        "NATS JetStream: nats-server is not installed. Run: apt-get install nats-server",
    ]
    (tmp_path / "nats-server").touch(0o700)
    assert NATS.path == str(tmp_path / "nats-server")
    assert not replace(NATS, client="no_such_module").is_there(contest)
    assert contest.left_out[2].startswith("NATS JetStream: no_such_module is not installed. Run: pip install")


@pytest.mark.anyio
async def test_a_broker_that_does_not_start_is_told_with_its_log(redis_url: str, tmp_path: Path) -> None:
    """Not after two minutes."""
    broken = replace(NATS, program="sh", prepare=lambda path, *_: ([path, "-c", "echo no such thing"], {}))
    async with open_ground(redis_url) as ground:
        with pytest.raises(BenchFailed, match="NATS JetStream has not started") as raised:
            async with broken.started(tmp_path / "broker", ground.backend):
                raise AssertionError
    assert "no such thing" in (raised.value.remedy or "")


@pytest.mark.full("starts brokers")
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.anyio
@pytest.mark.parametrize("broker", [pytest.param(each, id=each.client) for each in BROKERS])
async def test_a_broker_is_measured_beside_ours_and_ends(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broker: Broker
) -> None:
    """All that its client library has a form for, and the size of a record; no process stays."""
    if broker.path is None:
        pytest.skip(f"apt-get install {broker.program}")
    pytest.importorskip(broker.client, reason="pip install -e '.[bench]'")
    monkeypatch.setattr(scene, "BROKERS", (broker,))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with open_ground(redis_url) as ground:
        rows = await scene.brokers(Contest(ground, runs=1, records=RECORDS))
    modes = ["send", "record"] if broker is RABBITMQ else ["send", "batch", "record"]
    assert [row.scene for row in rows] == [f"{broker.client}-{mode}" for mode in [*modes, "size"]]
    assert all(row.ours.median > 0 and row.against.median > 0 for row in rows)
    assert all(row.against.name.startswith(f"{broker.name} ") for row in rows)
    assert 50 < rows[-1].against.median < 500
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - which would be told to be blocking
    running = psutil.process_iter(["cmdline", "environ"])
    assert not [each for each in running if str(tmp_path) in f"{each.info['cmdline']}{each.info['environ']}"]
