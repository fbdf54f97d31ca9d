"""What comes back from the archive is what Redis held: ids, headers, payloads, and what nobody can read."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamworker import DeadLetter
from streamworker.redisio.keys import GroupKeys
from tests.archive.shop import KEYS, Order, Shop, all_archived, all_trimmed, ends, exact
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio


class Reversed:
    """A codec of one's own."""

    name = "reversed"

    def encode(self, record: Any) -> bytes:
        return msgspec.json.encode(record)[::-1]

    def decode(self, payload: bytes) -> Any:
        return msgspec.json.decode(payload[::-1], type=Order)


CODECS = ["json", "msgpack", "fields", "arrow", Reversed()]


async def read(raw: Any, url: str, shop: Shop, name: str) -> list[dict[str, Any]]:
    """Return what a group sees of all records."""
    late = shop.late(name, errors=DeadLetter())
    async with shop.works() as worker:
        await wait_for_async(ends(raw, shop.partitions, name), "all is read")
        rows = await worker.rows(late)
    return sorted(rows, key=lambda row: (row["partition"], row["n"]))


@pytest.mark.parametrize("single", [False, True], ids=["packed", "single"])
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: getattr(codec, "name", codec))
async def test_records_of_each_codec_come_back_as_they_were(
    redis_url: str, tmp_path: Path, codec: Any, single: bool
) -> None:
    """A group that read them in Redis and one that reads them in the archive see the same."""
    its: dict[str, Any] = {"codec": codec, "retention": "1 hour"}
    if codec != "arrow":
        its["single_entries"] = single
    elif single:
        its["archive"] = {"columns": False}
    lake = str(tmp_path / "lake")
    with exact(redis_url) as raw:
        shop = Shop(redis_url, lake, 2, **its)
        await shop.send(range(600), 5)
        if codec != "arrow":
            for n in range(600, 620):
                await shop.orders.send(Order(f"c{n % 5}", n), headers={"trace": f"t{n}"})
            together = [
                shop.orders.send(
                    Order(f"c{n % 5}", n), headers={"trace": f"t{n}", "b": "é"} if n % 3 else None
                )
                for n in range(620, 700)
            ]
            await asyncio.gather(*together)
        live = await read(raw, redis_url, shop, "live")
        async with Shop(redis_url, lake, 2, **its).works():
            await all_archived(raw, 2)
        for p in range(2):
            raw.xtrim(KEYS.events(p), maxlen=0, approximate=False)
        late = await read(raw, redis_url, Shop(redis_url, lake, 2, **its), "late")
    assert len(late) == (600 if codec == "arrow" else 700)
    assert late == live


class Newer(msgspec.Struct):
    customer: str
    n: int
    coupon: str = ""


async def test_columns_that_an_older_archiver_does_not_know_come_back(redis_url: str, tmp_path: Path) -> None:
    """While two releases run, a worker of the one archives what the other sends."""
    lake, seen = str(tmp_path / "lake"), list[Newer]()
    newer = Shop(redis_url, lake, 1, codec="arrow", record=Newer)
    with exact(redis_url) as raw:
        async with Shop(redis_url, lake, 1, codec="arrow").works(), newer.app:
            await newer.orders.send_many([Newer("ann", n, f"C{n}") for n in range(5)])
            await all_trimmed(raw, 1)
        later = Shop(redis_url, lake, 1, codec="arrow", record=Newer)

        @later.app.processor(later.orders, name="late")
        async def late(order: Newer) -> None:
            seen.append(order)

        async with later.works():
            await wait_for_async(ends(raw, 1, "late"), "all is read")
    assert seen == [Newer("ann", n, f"C{n}") for n in range(5)]


async def test_entries_that_cannot_be_read_fail_again_as_they_were(redis_url: str, tmp_path: Path) -> None:
    """They are dead letters of both groups, with the same fields."""
    lake = str(tmp_path / "lake")
    odd: list[dict[Any, Any]] = [
        {"v": b"no json"},
        {"v": b'{"customer": 1}'},
        {"w": b"another field"},
        {"v": b'{"customer":"c","n":7}', "x": b"and another"},
        {b"\xff": b"no text", "v": b"\x00\xff"},
        {"v": b'{"customer":"c","n":80}', "sw:replayed-for": b"live"},
        {"n": b"3", "v": b"no entry of many"},
    ]
    with exact(redis_url) as raw:
        shop = Shop(redis_url, lake, 1, retention="1 hour")
        await shop.send(range(10))
        for fields in odd:
            raw.xadd(KEYS.events(0), fields)
        await shop.send(range(10, 20))
        live = await read(raw, redis_url, shop, "live")
        async with Shop(redis_url, lake, 1, retention="1 hour").works():
            await all_archived(raw, 1)
        raw.xtrim(KEYS.events(0), maxlen=0, approximate=False)
        late = await read(raw, redis_url, Shop(redis_url, lake, 1, retention="1 hour"), "late")
        assert letters(raw, "late") == letters(raw, "live")
        assert len(letters(raw, "late")) >= 4
    assert [row for row in live if row not in late] == [row for row in live if row["n"] == 80]


def letters(raw: Any, group: str) -> list[dict[bytes, bytes]]:
    """Return what is in a group's dead letters, but for when and by whom they were given up."""
    found = [fields for _, fields in raw.xrange(GroupKeys("shop", "orders", group).dead(0))]
    return [{k: v for k, v in fields.items() if k not in (b"at", b"by", b"group")} for fields in found]
