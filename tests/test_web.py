"""`tests/target/web.py` is a user's web service; it runs unchanged with FastAPI under uvicorn."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.blocks import save
from tests.helpers import PATIENCE_S, wait_for
from tests.raw import opened
from tests.runtime.workbench import full_memory

ROOT = Path(__file__).parents[1]
WEB = ROOT / "tests" / "target" / "web.py"
SHOP = ROOT / "examples" / "shop" / "shop.py"
ORDER = {"order_id": 7, "customer": "ann", "sku": "tea", "quantity": 2, "placed_at": "2026-11-02T05:00:00Z"}


@pytest.fixture
def service(redis_url: str, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A web server, which listens on a socket in the folder of the test."""
    shutil.copy(WEB, tmp_path / "web.py")
    shutil.copy(SHOP, tmp_path / "shop.py")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "web:api", "--uds", "web.sock"],
            cwd=tmp_path,
            env=os.environ | {"STREAMWORKER_REDIS_URL": redis_url},
            stderr=log,
        )
    wait_for(lambda: b"Uvicorn running" in (tmp_path / "log").read_bytes(), "the web service has started")
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def client(service: "subprocess.Popen[bytes]", tmp_path: Path) -> Iterator[httpx.Client]:
    del service
    transport = httpx.HTTPTransport(uds=str(tmp_path / "web.sock"))
    with httpx.Client(transport=transport, base_url="http://web", timeout=PATIENCE_S) as made:
        yield made


def entries(redis_url: str, stream: str, partitions: int) -> list[Any]:
    with opened(redis_url) as redis:
        keys = [f"sw:{{shop.{stream}.{p}}}:events" for p in range(partitions)]
        return [fields for key in keys for _, fields in redis.xrange(key)]


def test_a_web_service_takes_orders_once_asks_later_and_ends_quietly(
    client: httpx.Client, service: "subprocess.Popen[bytes]", redis_url: str, tmp_path: Path
) -> None:
    """One service for all of it: it takes seconds to start."""
    ids = {"idempotency-key": "17"}
    first = client.post("/orders", json=ORDER, headers=ids)
    again = client.post("/orders", json=ORDER, headers=ids)
    assert (first.status_code, first.json()["seen_before"]) == (202, False)
    assert again.json() == {"entry": first.json()["entry"], "seen_before": True}
    assert not client.post("/orders", json=ORDER | {"customer": "bob"}, headers=ids).json()["seen_before"]
    for _ in range(2):
        assert not client.post("/orders", json=ORDER).json()["seen_before"], "it had no key"
    found = entries(redis_url, "orders", 16)
    assert len(found) == 4
    assert all(fields[b"h.from"] == b"web" for fields in found)
    assert {json.loads(fields[b"v"])["customer"] for fields in found} == {"ann", "bob"}

    # Orders of one number schedule one question, and it is cancelled once.
    place = "/customers/ann/orders/7/question"
    assert [client.delete(place).json() for _ in range(2)] == [{"cancelled": True}, {"cancelled": False}]
    assert client.delete("/customers/cid/orders/7/question").json() == {"cancelled": False}

    client.close()
    service.send_signal(signal.SIGTERM)
    assert service.wait(30) in (0, -signal.SIGTERM)
    log = (tmp_path / "log").read_text("utf-8")
    assert "Application shutdown complete" in log
    assert not any(word in log for word in ("ERROR", "Traceback", "destroyed"))


def imported(monkeypatch: pytest.MonkeyPatch, folder: Path, redis_url: str) -> Any:
    """Import the web service of a folder; what was imported under its names is there again after the test."""
    monkeypatch.setenv("STREAMWORKER_REDIS_URL", redis_url)
    monkeypatch.syspath_prepend(folder)
    for name in ("shop", "web"):
        monkeypatch.setitem(sys.modules, name, sys)
        del sys.modules[name]
    return import_module("web")


@pytest.mark.anyio
async def test_the_service_of_the_page_tells_its_clients_what_to_do(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/sending.md, word for word: once by its key, 422 for what is no order, 503 where Redis refuses."""
    save("docs/sending.md", tmp_path)
    web_py = tmp_path / "web.py"  # on a busy machine the first send, which connects, may take longer
    web_py.write_text(web_py.read_text("utf-8").replace("2 seconds", "60 seconds"), "utf-8")
    web = imported(monkeypatch, tmp_path, redis_url)
    transport = httpx.ASGITransport(web.api)
    async with web.app.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://web") as client:
        ids, order = {"idempotency-key": "17"}, {"customer": "ann", "amount": 5.0}
        first, again = [await client.post("/orders", json=order, headers=ids) for _ in range(2)]
        assert (first.status_code, again.json()) == (202, first.json() | {"seen_before": True})
        assert (await client.post("/orders", json={"customer": "ann"})).status_code == 422
        wrong = await client.post("/orders", json=order, headers={"idempotency-key": "x" * 2_000})
        assert wrong.status_code == 422 and "An id has 2000 bytes" in wrong.text
        with full_memory(redis_url):
            refused = await client.post("/orders", json=order)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert len(entries(redis_url, "orders", 16)) == 1


def test_a_script_imports_without_an_event_loop(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function of the same module; that it keeps no program alive is in tests/runtime/test_sync.py."""
    shutil.copy(WEB, tmp_path / "web.py")
    shutil.copy(SHOP, tmp_path / "shop.py")
    web = imported(monkeypatch, tmp_path, redis_url)
    row = {"id": "1", "customer": "ann", "sku": "tea", "quantity": "2"}
    assert web.nightly_import([row] * 3_000) == 3_000
    assert entries(redis_url, "orders", 16)
    web.app.close()
