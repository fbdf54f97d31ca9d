"""The producers of an app: one for each stream and event loop, over one set of connections a loop."""

import asyncio

from streamworker.processors import StreamSpec
from streamworker.redisio.wire.client import CONNECTIONS, Backend
from streamworker.runtime.connecting import connected
from streamworker.runtime.durability import pipelines_of
from streamworker.runtime.send.producer import Producer
from streamworker.settings import Settings


class Producers:
    """Opens producers when they are needed, and closes those of an event loop."""

    def __init__(self) -> None:
        self._backends: dict[asyncio.AbstractEventLoop, Backend] = {}
        self._producers: dict[tuple[asyncio.AbstractEventLoop, str], Producer] = {}

    def of(self, spec: StreamSpec, settings: Settings, *, streams: int) -> Producer:
        """Return the producer of a stream for the running event loop; ``streams`` may need connections."""
        loop = asyncio.get_running_loop()
        producer = self._producers.get((loop, spec.name))
        if producer is None:
            backend = self._backends.get(loop)
            if backend is None:
                self._forget_ended_loops()
                connections = max(CONNECTIONS, pipelines_of(settings) * streams)
                backend = connected(settings, f"{spec.app}:producer", connections)
                self._backends[loop] = backend
            producer = Producer(backend, spec, settings)
            self._producers[loop, spec.name] = producer
        return producer

    async def aclose(self, settings: Settings) -> None:
        """Close the producers and connections of the running event loop; see ``App.aclose``."""
        loop = asyncio.get_running_loop()
        ours = [self._producers.pop(key) for key in list(self._producers) if key[0] is loop]
        backend = self._backends.pop(loop, None)
        if backend is None:
            return
        try:
            async with asyncio.timeout(settings.call_timeout_ms / 1000):
                for producer in ours:
                    await producer.aclose()
        except TimeoutError:
            pass  # Redis does not answer, or a partition is full: closing fails the sends that still wait.
        await backend.aclose()

    def _forget_ended_loops(self) -> None:
        """Drop the producers, connections and sockets of event loops that were closed.

        A program may call ``asyncio.run`` several times to send, and never close the app.
        """
        for loop in [loop for loop in list(self._backends) if loop.is_closed()]:
            self._backends.pop(loop, None)
            for key in [key for key in list(self._producers) if key[0] is loop]:
                self._producers.pop(key, None)
