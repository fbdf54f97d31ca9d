"""A stream grows on a Cluster, where each partition and its locks may be on another node."""

import pytest

from streamworker.redisio.wire.client import Backend
from tests.runtime.test_grown_groups import Shop, all_committed, grow, settled

pytestmark = [pytest.mark.anyio, pytest.mark.full("workers on a Cluster")]


async def test_groups_go_on_in_order_while_their_stream_grows(redis_url: str) -> None:
    shop = Shop(redis_url)
    async with Backend.open(redis_url, name="tool") as backend, shop.workers("w1", "w2"):
        async with shop.sending():
            await shop.sends(300)
            for count in (3, 5):
                await grow(backend, count)
                await shop.sends(300)
        await shop.all_handled()
        await settled(backend, 2, 3, 5)
        await all_committed(backend, shop, 2, 3, 5)
