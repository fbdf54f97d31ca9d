"""The producers of an app: one for each stream and event loop, over one set of connections a loop."""

import asyncio
from collections.abc import Sized

from streamworker.declaring.specs import StreamSpec
from streamworker.redisio.wire.client import CONNECTIONS, Backend
from streamworker.runtime.connecting import connected
from streamworker.runtime.durability import pipelines_of
from streamworker.runtime.send.producer import Producer
from streamworker.settings import Settings


class Producers:
    """Opens producers when they are needed, and closes those of an event loop."""

    def __init__(self, streams: Sized) -> None:
        self._streams = streams
        """Those that may need connections."""
        self._opened: dict[asyncio.AbstractEventLoop, tuple[Backend, dict[str, Producer]]] = {}
        """The connections of each event loop, and its producers by stream."""

    def of(self, spec: StreamSpec, settings: Settings) -> Producer:
        """Return the producer of a stream for the running event loop."""
        backend, producers = self._of_loop(spec.app, settings)
        if (producer := producers.get(spec.name)) is None:
            producer = producers[spec.name] = Producer(backend, spec, settings)
        return producer

    def backend(self, app: str, settings: Settings) -> Backend:
        """Return the connections of the running event loop, for reads."""
        return self._of_loop(app, settings)[0]

    def _of_loop(self, app: str, settings: Settings) -> tuple[Backend, dict[str, Producer]]:
        loop = asyncio.get_running_loop()
        if (opened := self._opened.get(loop)) is None:
            # A program may call ``asyncio.run`` several times to send, and never close the app.
            for ended in [each for each in list(self._opened) if each.is_closed()]:
                self._opened.pop(ended, None)
            connections = max(CONNECTIONS, pipelines_of(settings) * len(self._streams))
            opened = self._opened[loop] = connected(settings, f"{app}:producer", connections), {}
        return opened

    async def aclose(self, settings: Settings) -> None:
        """Close the producers and connections of the running event loop; see ``App.aclose``."""
        opened = self._opened.pop(asyncio.get_running_loop(), None)
        if opened is None:
            return
        backend, producers = opened
        try:
            async with asyncio.timeout(settings.call_timeout_ms / 1000):
                for producer in producers.values():
                    await producer.aclose()
        except TimeoutError:
            pass  # Redis does not answer, or a partition is full: closing fails the sends that still wait.
        await backend.aclose()
