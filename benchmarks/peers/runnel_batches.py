"""runnel's handler of batches, by the Python 3.8 of ``benchmarks.runnel``; so nothing newer is used here."""

import json
import os
import time
from typing import Any, Dict  # noqa: UP035 - for Python 3.8

import anyio
from runnel import App, Record
from runnel.worker import Worker


class Event(Record):  # type: ignore[misc]
    """One record; as in ``benchmarks.measuring.task``, which needs a newer Python."""

    number: int
    key: str
    amount: float
    sent_ns: int


def main(task: Dict[str, Any]) -> None:  # noqa: UP006
    """Handle records until the process is stopped, and leave no key behind."""
    app = App(task["app"], redis_url=task["url"], log_level="error")
    stream = app.stream("events", record=Event, partition_by="key", partition_count=len(task["keys"]))
    # The dataclass is frozen; runnel's keys would not be those that the bench has filled.
    object.__setattr__(stream, "partition_key", task["keys"].__getitem__)
    begun = False

    @app.processor(stream, name=task["group"], prefetch_count=task["batch"])
    async def handle(events: Any) -> None:
        nonlocal begun
        async for batch in events.take(task["batch"], within=1).records():
            if not begun:
                begun = True
                with open(task["begun_path"] + ".new", "w", encoding="utf-8") as file:  # noqa: ASYNC230, PTH123
                    json.dump({"at_s": time.monotonic(), "records": len(batch)}, file)
                os.rename(task["begun_path"] + ".new", task["begun_path"])  # noqa: PTH104

    async def remove_keys() -> None:
        async for key in app.redis.scan_iter("__*:%s*" % task["app"]):  # noqa: UP031
            await app.redis.delete(key)

    Worker(app).start()
    anyio.run(remove_keys, backend="asyncio")


if __name__ == "__main__":
    main(json.loads(os.environ["STREAMWORKER_BENCH_TASK"]))
