"""Windows, sessions and ends of values, as a user writes them: two type checkers pass it."""

from collections.abc import AsyncIterator
from datetime import datetime
import msgspec
from streamworker import App, Context, Window

app = App("shop")
class Order(msgspec.Struct):
    customer: str
    placed_at: datetime
    amount: float
class Hourly(msgspec.Struct):
    customer: str
    hour: datetime
    spent: float = 0.0
class Visit(msgspec.Struct):
    customer: str
    began: datetime
    orders: int = 0
class Mail(msgspec.Struct):
    customer: str
    text: str

orders = app.stream("orders", Order, key="customer", partitions=8)
hourly = app.stream("hourly", Hourly, key="customer", partitions=8)
mails = app.stream("mails", Mail, key="customer", partitions=8)
late = app.stream("late", Order, key="customer", partitions=8)
seen = app.table("seen", Visit, ttl="30 minutes")

@app.window(orders, every="1 hour", by="placed_at", late="10 minutes", into=hourly, late_into=late)
def per_hour(total: Hourly | None, order: Order, window: Window) -> Hourly:
    total = total or Hourly(order.customer, window.start)
    total.spent += order.amount
    return total

@app.window(orders, every="1 day", tz="Europe/Paris", by=lambda order: order.placed_at, late=60, into=hourly, emit="changes", name="days")
def per_day(total: Hourly | None, order: Order, window: Window) -> Hourly:
    return total or Hourly(order.customer, window.start)

@app.session(orders, gap="30 minutes", by="placed_at", late="5 minutes")
def visits(visit: Visit | None, order: Order, window: Window) -> Visit:
    visit = visit or Visit(order.customer, window.start)
    visit.orders += 1
    return visit

@visits.merge
def joined(one: Visit, other: Visit) -> Visit:
    return Visit(one.customer, min(one.began, other.began), one.orders + other.orders)

@visits.closed(into=mails)
def thank(visit: Visit, window: Window) -> Mail | None:
    return Mail(visit.customer, "thanks") if visit.orders > 1 else None

@app.processor(orders, tables=[seen])
async def follow(order: Order) -> None: ...

@follow.expired(seen, into=mails)
async def gone(customer: str, visit: Visit, ctx: Context) -> Mail | None:
    return Mail(customer, "come back")

async def use() -> None:
    total = await per_hour.open.get(("ann", datetime.now()))
    if total is not None:
        print(total.spent)
    for session in await visits.open.get("ann") or []:
        print(session.total.orders, session.start)
    print(per_hour(None, Order("a", datetime.now(), 1.0), Window(datetime.now(), datetime.now())).spent)
    print((await gone("a", Visit("a", datetime.now()), None)) is None)  # type: ignore[arg-type]
