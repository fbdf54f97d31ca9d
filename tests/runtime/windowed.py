"""A shop whose orders are counted by hour, as one release of its code declares it."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from streamworker import App, DeadLetter, Skip, Window
from streamworker.declaring.windows import Windowed
from streamworker.testing import LocalWorker

DAY = "2025-11-28"


def at(time: str, day: str = DAY) -> datetime:
    """Return a time of a day, in UTC."""
    return datetime.fromisoformat(f"{day}T{time}").replace(tzinfo=UTC)


class Order(msgspec.Struct):
    customer: str | None
    placed_at: datetime
    amount: int = 1


class Hourly(msgspec.Struct):
    customer: str | None
    start: datetime
    end: datetime
    spent: int = 0


FAILS = {-1: ValueError("no amount"), -2: Skip("no amount"), -3: DeadLetter("no amount")}


def add(total: Hourly | None, order: Order, window: Window) -> Hourly:
    """Add an order to what its customer has spent in a window; it fails for some amounts."""
    if order.amount in FAILS:
        raise FAILS[order.amount]
    total = total or Hourly(order.customer, *window)
    total.spent += order.amount
    return total


class Shop:
    """Orders by customer, and what each spends in each window."""

    def __init__(
        self,
        *,
        url: str | None = None,
        partitions: int = 1,
        stream: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.app = App("shop", **({"redis_url": url} if url else {}))
        named: dict[str, Any] = {"key": "customer", "partitions": partitions, **(stream or {})}
        self.orders = self.app.stream("orders", Order, **named)
        self.hourly = self.app.stream("hourly", Hourly, key="customer", partitions=1, retention="1 day")
        self.late = self.app.stream("late", Order, key="customer", partitions=1, retention="1 day")
        kind = {"every": "1 hour", "by": "placed_at", "late": "10 minutes", "into": self.hourly, **options}
        kind["late_into"] = self.late if kind.get("late_into") else None
        self.per_hour: Windowed[Order, Hourly] = self.app.window(self.orders, **{"name": "per_hour", **kind})(
            add
        )

    async def send(self, *orders: tuple[str, str] | tuple[str, str, int], day: str = DAY) -> None:
        """Send orders: customer, time and amount each."""
        await self.orders.send_many(
            [Order(customer, at(time, day), *amount) for customer, time, *amount in orders]
        )

    async def rows(self, worker: LocalWorker) -> list[tuple[str | None, str, int]]:
        """Return what was told: customer, start and total of each window."""
        return [(each.customer, f"{each.start:%H:%M}", each.spent) for each in await worker.sent(self.hourly)]

    async def errors(self, worker: LocalWorker) -> list[str]:
        """Return what is said of each dead letter."""
        return [letter.error for letter in await worker.dead_letters(self.per_hour)]
