"""A store and Redis agree about whose archive it is, or nothing is archived until a person decides."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from streamworker.archive.identity import ArchiveIdentity, read_identity
from streamworker.archive.store import Store, store_at
from streamworker.core.data.archives import IDENTITY
from streamworker.errors import ArchiveConflict, ArchiveError
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.archive.identities import field_of, verified

pytestmark = pytest.mark.anyio

KEYS = StreamKeys("shop", "orders")


@pytest.fixture
async def backend(redis_url: str) -> AsyncIterator[Backend]:
    async with Backend.open(redis_url, name="test") as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_at(str(tmp_path / "lake"))


async def ask(
    backend: Backend,
    store: Store,
    keys: StreamKeys = KEYS,
    *,
    log: str = "",
    has: bool = False,
    known: str = "",
) -> str:
    return await verified(backend, keys, store, log=log, codec="json", has_archived=has, known=known)


@pytest.mark.parametrize("log", ["", "price"])
async def test_a_new_archive_has_the_same_id_in_store_and_redis(
    backend: Backend, store: Store, log: str
) -> None:
    """Whoever asks again is told the same."""
    its = await ask(backend, store, log=log)
    assert await ask(backend, store, log=log, has=True) == its
    assert await ask(backend, store, log=log, has=True, known=its) == its
    assert await backend.execute("HGET", KEYS.meta, field_of(log)) == its.encode()
    assert read_identity(store) == ArchiveIdentity("shop", "orders", log, "json", its)


async def test_workers_that_start_together_agree(backend: Backend, store: Store) -> None:
    found = await asyncio.gather(*(ask(backend, store) for _ in range(8)))
    assert len(set(found)) == 1


async def test_another_apps_archive_is_refused(backend: Backend, store: Store) -> None:
    """A staging app with production's URL does not append to production's chain."""
    await ask(backend, store)
    with pytest.raises(ArchiveConflict, match="is the archive of stream 'orders' of app 'shop' already"):
        await ask(backend, store, StreamKeys("staging", "orders"))
    await backend.execute("HSET", StreamKeys("old", "orders").meta, field_of(""), "another")
    with pytest.raises(ArchiveConflict, match="archive adopt"):
        await ask(backend, store, StreamKeys("old", "orders"))


async def test_an_emptied_store_is_refused_once_it_held_records(backend: Backend, store: Store) -> None:
    its = await ask(backend, store)
    store.delete([IDENTITY])
    with pytest.raises(ArchiveConflict, match="is empty, and held records before"):
        await ask(backend, store, has=True)
    with pytest.raises(ArchiveConflict, match="is empty"):
        await ask(backend, store, known=its)
    assert await ask(backend, store) == its, "nothing was archived: a first start was cut short"


async def test_a_redis_that_was_emptied_under_workers_is_told_again(backend: Backend, store: Store) -> None:
    """A worker that starts after that waits until one of these has told it, or a person."""
    its = await ask(backend, store)
    await backend.execute("DEL", KEYS.meta)
    with pytest.raises(ArchiveConflict, match="Redis knows nothing of it"):
        await ask(backend, store)
    assert await ask(backend, store, known=its) == its
    assert await ask(backend, store) == its


async def test_a_store_that_ignores_conditions_is_refused(
    backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(store), "put_new", lambda *_: True)
    with pytest.raises(ArchiveError, match="ignores conditions"):
        await ask(backend, store)


async def test_a_store_that_hangs_holds_nobody_up_who_stops(
    backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, done = threading.Event(), list[str]()

    def hang(_: Store) -> None:
        answers.wait(5)
        done.append("an answer")

    monkeypatch.setattr(type(store), "check_conditions", hang)
    with anyio.move_on_after(0.2):
        await ask(backend, store)
    assert done == []
    answers.set()
