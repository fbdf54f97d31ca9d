"""Groups that were declared late read from the archive what Redis has trimmed."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from streamworker.archive.store import FileStore
from tests.archive.shop import Shop, all_trimmed, exact

pytestmark = pytest.mark.anyio


async def test_each_segment_is_fetched_once_however_many_partitions_are_read(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more partitions than may have a segment open, none waits for ever, and none opens one twice."""
    lake, partitions, records = str(tmp_path / "lake"), 20, 200_000
    early = Shop(redis_url, lake, partitions)
    with exact(redis_url) as raw:
        async with early.works():
            await early.send(range(records), 400)
            await all_trimmed(raw, partitions)
    fetched = Counter[str]()
    get = FileStore.get

    def counted(self: Any, name: str) -> Any:
        if (found := get(self, name)) is not None and name.startswith("partition="):
            fetched[name] += 1
        return found

    monkeypatch.setattr(FileStore, "get", counted)
    shop, seen = Shop(redis_url, lake, partitions), list[int]()

    @shop.app.processor(shop.orders, batch=500, name="late")
    async def late(batch: list[Any]) -> None:
        seen.extend(order.n for order in batch)

    async with shop.works() as worker:
        await worker.until_drained()
    assert sorted(seen) == [*range(records)]
    assert set(fetched.values()) == {1}
