"""A signal wakes who waits, and remembers nothing."""

import asyncio
import time

import pytest

from streamworker.runtime.signals import Signal

pytestmark = pytest.mark.anyio


async def waiting(signal: Signal, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(signal.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_all_who_wait_are_woken_and_nobody_who_comes_later() -> None:
    """What was fired before is not remembered."""
    signal = Signal()
    signal.fire()
    tasks = await waiting(signal, 3)
    assert not any(task.done() for task in tasks)
    signal.fire()
    await asyncio.gather(*tasks)
    late = (await waiting(signal, 1))[0]
    assert not late.done()
    signal.fire()
    await late


async def test_who_is_cancelled_takes_nobody_else_along() -> None:
    """The others still wait, and are woken; also when both happen in one turn of the event loop."""
    signal = Signal()
    first, second, third = await waiting(signal, 3)
    first.cancel()
    await asyncio.sleep(0)
    assert first.cancelled() and not second.done()
    second.cancel()
    signal.fire()
    await third
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_a_wait_ends_when_its_time_is_over_or_it_is_woken() -> None:
    """And leaves no timer and no waiter behind, however often nobody fires."""
    signal = Signal()
    began = time.perf_counter()
    for _ in range(3):
        await signal.wait(0.01)
    assert time.perf_counter() - began >= 0.03
    asyncio.get_running_loop().call_later(0.01, signal.fire)
    began = time.perf_counter()
    await signal.wait(30)
    assert time.perf_counter() - began < 10
    assert not signal._waiters
