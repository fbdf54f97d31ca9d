"""The slot map of a Redis Cluster, and how it is refreshed.

Any node returns the whole map (``CLUSTER SLOTS``). The known map may be outdated at any moment: a slot was
moved, or a primary died and a replica took over. Then a node replies ``MOVED``, which names the slot's node,
or the node does not answer. In both cases the map is refreshed in the background, at most a few times a
second, even if many calls fail.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.crc import key_slot
from redis.exceptions import ResponseError

from streamworker.errors import BackendError, BackendUnavailable, ConfigurationError
from streamworker.redisio.wire.failures import look_at_error, translate
from streamworker.redisio.wire.link import Endpoint, ask
from streamworker.urls import Credentials, each_server, host_and_port, kind_of, plaintext_host

SLOTS = 16_384
ASK_TIMEOUT_S = 1.0
REFRESH_PAUSE_S, REFRESH_PAUSE_MAX_S = 0.25, 1.0
"""Minimum and maximum pause between two refreshes, without jitter; it grows with each refresh that finds
nothing new. A primary without a replica may be down for hours, while owners keep calling it."""

_URL_REMEDY = (
    "It is redis+cluster://user:password@host1:port1,host2:port2 with any of the Cluster's nodes; "
    "rediss+cluster:// for TLS; characters such as / # @ in a password are percent-encoded."
)


def slot_of(key: str) -> int:
    """Return the slot of a key, which depends on the text in its braces, or on the whole key.

    >>> slot_of("sw:{shop.orders.3}:events") == slot_of("sw:{shop.orders.3}:lock:price")
    True
    """
    slot: int = key_slot(key.encode())
    return slot


def seeds_of(url: str, name: str, credentials: Credentials | None = None) -> list[Endpoint]:
    """Return the nodes that a URL of a Cluster names; all nodes have their credentials."""
    scheme = kind_of(url) and url.partition("+")[0].lower()
    if scheme not in ("redis", "rediss"):
        raise ConfigurationError("The URL of Redis cannot be read.", remedy=_URL_REMEDY)
    seeds = [Endpoint(each, name) for each in each_server(url)]
    for seed in seeds:
        seed.credentials = credentials
    if any(seed.database for seed in seeds):
        raise ConfigurationError(
            "The URL of a Redis Cluster names a database other than 0, and a Cluster has no other.",
            remedy="Leave it out. Apps with different names share no key.",
        )
    return seeds


@dataclass(slots=True)
class Map:
    """The primary of each slot, and all nodes, as one node tells them."""

    slots: list[str | None]
    """Address of each slot's primary; None for a slot without a primary."""
    nodes: frozenset[str]
    """Addresses of all nodes that have slots, and of their replicas."""

    @property
    def primaries(self) -> list[str]:
        """Addresses of all primaries."""
        return sorted({address for address in self.slots if address is not None})


def read_map(reply: Any, asked: Endpoint) -> Map:
    """Parse the reply to ``CLUSTER SLOTS`` of the node that was asked.

    A node that does not know its own host leaves it empty, which then means this node.

    >>> reply = [[0, 16383, [b"db1", 7000, b"id"], [b"db2", 7001, b"id"]]]
    >>> found = read_map(reply, Endpoint("redis://seed:1", "t"))
    >>> found.slots[77], sorted(found.nodes), found.primaries
    ('db1:7000', ['db1:7000', 'db2:7001'], ['db1:7000'])
    """
    slots: list[str | None] = [None] * SLOTS
    nodes: set[str] = set()
    for first, last, *members in reply:
        for index, (host, port, *_) in enumerate(members):
            name = host.decode("utf-8", "replace") if host else asked.host
            if name == "?":  # The node exists, and its host name is not known yet.
                continue
            address = asked.at(name, int(port)).address
            nodes.add(address)
            if index == 0:
                slots[first : last + 1] = [address] * (last + 1 - first)
    return Map(slots, frozenset(nodes))


class Topology:
    """The known slot map of a Cluster, for one event loop; ``seeds`` are some of its nodes."""

    def __init__(self, seeds: Sequence[Endpoint], rng: random.Random | None = None) -> None:
        self.seeds = seeds
        self._rng = rng or random.Random()
        self._map = Map([], frozenset())
        self._suspects: set[str] = set()
        """Nodes that did not answer since the last refresh; they are asked last."""
        self._looking: asyncio.Task[None] | None = None
        self._looked_s = float("-inf")
        self._in_vain = 0
        """Refreshes since the last one that found something new."""
        self._closed = False
        self.version = 0
        """Version of the map, which grows with each change."""

    @property
    def address(self) -> str:
        """The seeds, for messages."""
        return "the Cluster at " + ", ".join(seed.address for seed in self.seeds)

    @property
    def primaries(self) -> list[str]:
        """Addresses of all nodes that have slots."""
        return self._map.primaries

    def address_of(self, slot: int) -> str | None:
        """Return the address of a slot's node; None if it is not known, or no node has the slot."""
        return self._map.slots[slot] if self._map.slots else None

    def target(self, address: str) -> Endpoint:
        """Return the target of a node, with the login of the URL."""
        host, _, port = address.rpartition(":")
        return self.seeds[0].at(host, int(port))

    async def loaded(self, timeout_ms: float) -> None:
        """Wait until the slots are known; raise the reason if no node returns them."""
        if self._map.slots:
            return
        looking = self._looking
        if looking is None or looking.done():
            looking = self._begin_look(0.0)
        # If a caller times out, the refresh continues for the next caller.
        await asyncio.wait((looking,), timeout=timeout_ms / 1000)
        if not looking.done() or looking.cancelled():
            raise BackendUnavailable(
                f"None of the nodes of {self.address} told within {timeout_ms:.0f} ms where its slots are.",
                remedy="Are they running, and can this machine reach them?",
            )
        looking.result()

    # -- what calls have found out -----------------------------------------------------------

    def moved(self, slot: int, host: str, port: int, by: Endpoint) -> None:
        """Note the new node of a slot, and refresh the map: other slots may have moved, too."""
        address = self.named(host, port, by)
        slots = self._map.slots
        if slots and slots[slot] != address:
            slots[slot] = address
            self.version += 1
            self._in_vain = 0
        self.look_soon()

    def named(self, host: str, port: int, by: Endpoint) -> str:
        """Return the address of a node that another one names."""
        # A node omits its own host, or sends `?`, if it does not know how clients reach it.
        target = by.at(by.host if host in ("", "?") else host, port)
        self._check(target)
        return target.address

    def failed(self, address: str) -> None:
        """Note that a node did not answer: its slots may have moved."""
        self._suspects.add(address)
        self.look_soon()

    def look_soon(self) -> None:
        """Refresh the map in the background, unless a refresh is in progress."""
        if self._closed or (self._looking is not None and not self._looking.done()):
            return
        pause_s = min(REFRESH_PAUSE_MAX_S, REFRESH_PAUSE_S * 2 ** min(self._in_vain, 8))
        pause_s *= 0.8 + 0.4 * self._rng.random()
        self._begin_look(self._looked_s + pause_s - asyncio.get_running_loop().time())

    def _begin_look(self, pause_s: float) -> "asyncio.Task[None]":
        self._looking = asyncio.get_running_loop().create_task(self._look(pause_s))
        self._looking.add_done_callback(look_at_error)
        return self._looking

    async def aclose(self) -> None:
        """Stop the refresh in the background."""
        self._closed = True
        if self._looking is not None and not self._looking.done():
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    # -- looking -----------------------------------------------------------------------------

    async def _look(self, pause_s: float) -> None:
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        suspects, self._suspects = self._suspects, set()
        refusal: BackendError | ConfigurationError | None = None
        for target in self._whom_to_ask(suspects):
            try:
                found = await self._ask(target)
            except (BackendError, ConfigurationError) as error:
                # A refusal says more than an unreachable node.
                if refusal is None or isinstance(refusal, BackendUnavailable):
                    refusal = error
                continue
            self._looked_s = asyncio.get_running_loop().time()
            self._in_vain += 1
            if found != self._map:
                self._map = found
                self.version += 1
                self._in_vain = 0
            return
        self._in_vain += 1
        self._looked_s = asyncio.get_running_loop().time()
        raise refusal or BackendUnavailable(f"The URL of {self.address} names no node.")

    def _whom_to_ask(self, suspects: set[str]) -> list[Endpoint]:
        known = {seed.address: seed for seed in self.seeds}
        known |= {address: self.target(address) for address in sorted(self._map.nodes)}
        order = self._rng.sample(list(known.values()), len(known))
        return sorted(order, key=lambda target: target.address in suspects)

    async def _ask(self, target: Endpoint) -> Map:
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                (reply,) = await ask(target, [("CLUSTER", "SLOTS")])
        except TimeoutError:
            raise BackendUnavailable(
                f"Redis at {target.address} did not tell within {ASK_TIMEOUT_S:.0f} s where its slots are.",
                remedy="Is it running, and can this machine reach it?",
            ) from None
        if isinstance(reply, ResponseError):
            if "cluster support disabled" in str(reply):
                raise ConfigurationError(
                    f"Redis at {target.address} is no Cluster, and its URL begins with redis+cluster://.",
                    remedy="For one server begin the URL with redis:// or rediss://.",
                )
            raise translate(reply, target.address)
        found = read_map(reply, target)
        if not found.primaries:
            raise BackendUnavailable(
                f"Redis at {target.address} is a node of a Cluster, and knows of nobody who has slots.",
                remedy="Give the slots to primaries: CLUSTER ADDSLOTSRANGE, or the --cluster create of the "
                "server's command line.",
            )
        for address in found.nodes:
            self._check(self.target(address))
        return found

    def _check(self, target: Endpoint) -> None:
        """Refuse to send a password as plain text to a machine that the URL does not name."""
        local = all(_is_this_machine(seed) for seed in self.seeds)
        if target.is_encrypted or not local or _is_this_machine(target):
            return
        raise ConfigurationError(
            f"Redis at {target.address} is a node of {self.address}: on another machine, to which passwords "
            "and records would go as plain text.",
            remedy="Use rediss+cluster://, which is TLS. Where the network itself is trusted, name a node by "
            "that address in the URL, and say allow_plaintext.",
        )


def _is_this_machine(target: Endpoint) -> bool:
    return plaintext_host(f"redis://{host_and_port(target.host, 1)}") is None
