"""One stream, one processor.

    python examples/01_hello.py

This sends three records to a server in memory, handles them and ends. To run the same app on your own
Redis, use `streamworker run 01_hello:app`, in as many terminals as you like.
"""
# prints: handled 3 greetings

import anyio
import msgspec

from streamworker import App
from streamworker.testing import local_worker, quiet_logs

app = App("hello")


class Greeting(msgspec.Struct):
    name: str


greetings = app.stream("greetings", Greeting, key="name", partitions=4)
handled: list[str] = []


@app.processor(greetings)
async def greet(greeting: Greeting) -> None:
    print(f"Hello, {greeting.name}!")
    handled.append(greeting.name)


async def main() -> None:
    async with local_worker(app) as worker:
        await greetings.send(Greeting("Ada"))
        await greetings.send_many([Greeting("Grace"), Greeting("Barbara")])
        await worker.until_drained()
    print(f"handled {len(handled)} greetings")


if __name__ == "__main__":
    quiet_logs()
    anyio.run(main)
