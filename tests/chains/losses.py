"""A judge of a chain whose servers lose what they had confirmed: each loss and each double must be told.

It judges in rounds: at rest, one failover while records flow, at rest again. With one failover a round what
is told is exact: which records a target has lost, and which it has from a history that its source has lost.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import msgspec
import redis

from streamworker import App
from streamworker.core.data.outbox import START, OutboxPosition, Target
from streamworker.core.data.placement import Placement
from streamworker.errors import BackendError
from streamworker.redisio.admin.outboxes import Diverged, accept_target, find_diverged
from streamworker.redisio.data.outbox import Heads, heads_of
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from tests.chains.chain_app import REGIONS, SKUS, Item, Noticed, Priced, Summed, item
from tests.chains.scene import CHAIN, ChainScene
from tests.chaos.sender import Sender, Sends
from tests.helpers import beside, wait_for
from tests.judge import read_logs
from tests.raw import opened, records_of

PARTITIONS = {"items": 4, "priced": 7, "summed": 3, "noticed": 2}
TARGETS = {"price": ("priced",), "sum_up": ("summed", "noticed")}
KEPT = {"RETENTION": "1 day"}
"""Workers of a chain that is judged keep what is committed, so that both ends of each way can be compared."""
PER_SECOND = 400
TO_EACH = 1_000
"""So many records use each way at least once. A target that is sent nothing more tells no loss."""
DECODERS: dict[str, Any] = {
    "items": msgspec.json.Decoder(Item),
    "priced": msgspec.msgpack.Decoder(Priced),
    "summed": msgspec.json.Decoder(Summed),
    "noticed": msgspec.json.Decoder(Noticed),
}


@cache
def _partition(stream: str, n: int) -> int:
    """Return the partition of a stream in which a record is, by its key."""
    customer = item(n).customer
    sku = int(customer[1:]) % SKUS
    key = {"items": customer, "priced": f"s{sku}", "summed": f"r{sku % REGIONS}"}[stream]
    return Placement(PARTITIONS[stream]).partition_of(key.encode())


class Way(NamedTuple):
    """From a partition of a processor's stream to one of another stream."""

    processor: str
    partition: int
    to: Target

    @property
    def keys(self) -> GroupKeys:
        return GroupKeys("chain", CHAIN[self.processor], self.processor)

    @property
    def source(self) -> str:
        return self.keys.outbox(self.partition).source


WAYS = [
    Way(processor, partition, Target(stream, its))
    for processor, streams in TARGETS.items()
    for partition in range(PARTITIONS[CHAIN[processor]])
    for stream in streams
    for its in range(PARTITIONS[stream])
]


@dataclass(frozen=True)
class Positions:
    """How far each way has come."""

    heads: dict[str, Heads]
    """Of each source."""
    taken: dict[Way, OutboxPosition]

    def head(self, way: Way) -> OutboxPosition:
        return self.heads[way.source].positions.get(way.to, START)

    @property
    def waiting(self) -> list[str]:
        """The ways on which something has not arrived."""
        return [
            f"{way.source} to {way.to}: {self.taken[way]} of {self.head(way)}"
            for way in WAYS
            if self.taken[way] != self.head(way)
        ]


@dataclass(frozen=True)
class Found(Positions):
    """What lies in Redis, as numbers of records."""

    streams: dict[tuple[str, int], list[int]]

    def sent(self, way: Way) -> list[int]:
        """Return what the records of the source come to at the target, in order."""
        records = self.streams[CHAIN[way.processor], way.partition]
        if way.to.stream == "noticed":  # It has no key, so each source deals its records out in turn.
            return [n for n in records if n % 10 == 0][(way.to.partition - way.partition) % 2 :: 2]
        return [n for n in records if _partition(way.to.stream, n) == way.to.partition]

    def arrived(self, way: Way) -> list[int]:
        """Return what the target has of the source."""
        records = self.streams[way.to.stream, way.to.partition]
        return [n for n in records if _partition(CHAIN[way.processor], n) == way.partition]


@dataclass
class Verdict:
    """What all rounds came to."""

    confirmed: int = 0
    unsent: int = 0
    """Sends that were confirmed and lost by the first stream; their sender was told."""
    lost: int = 0
    """Records that a target had confirmed and lost, and its source had deleted."""
    doubled: int = 0
    """Records that a target has from a history that its source has lost."""


@dataclass
class Judge:
    """What it found at the last rest, and what was told since."""

    scene: ChainScene
    verdict: Verdict = field(default_factory=Verdict)
    accepted: dict[Way, list[Diverged]] = field(default_factory=dict)
    """Where a target knew more than its source, and goes on."""

    def __post_init__(self) -> None:
        self.base = self.look()
        self._told = Sends()

    # -- a round -------------------------------------------------------------------------------

    @contextmanager
    def flow(self) -> Iterator[Sends]:
        """Let records flow meanwhile from a sender that remembers what it was told."""
        app = App("chain", redis_url=self.scene.url, durability=self.scene.durability)
        items = app.stream("items", Item, key="customer", partitions=PARTITIONS["items"])
        self._told = Sends()
        sender = Sender(app, items, item, self._told, self.scene.sent)

        async def send(stop: threading.Event) -> None:
            async with app:
                async with sender.load(PER_SECOND):
                    await asyncio.to_thread(stop.wait)
                await sender.ask_what_is_lost()

        with beside(send):
            yield self._told
        self.scene.sent = sender.issued
        self.scene.send(TO_EACH)

    def settle(self) -> None:
        """Wait until all has arrived; a target that knows more goes on once a worker has told of it."""
        try:
            wait_for(self._is_at_rest, "all has arrived, and what waits for a person was told", 90)
        except AssertionError as error:
            error.add_note("\n".join(self._positions().waiting))
            raise

    def _is_at_rest(self) -> bool:
        try:
            asyncio.run(self._accept_what_was_told())
            groups = self.scene.snapshots()
            return not self._positions().waiting and all(group.lag == group.outbox == 0 for group in groups)
        except (BackendError, redis.RedisError):
            return False  # A node has just gone.

    async def _accept_what_was_told(self) -> None:
        """Do what `streamworker repair --accept-targets` does, as somebody who reads the log."""
        told = {(e["source"], e["to"], e["stands"], e["since"]) for e in self.scene.logged("outbox_diverged")}
        async with Backend.open(self.scene.url, name="repair", call_timeout_ms=10_000) as backend:
            for processor in TARGETS:
                keys = GroupKeys("chain", CHAIN[processor], processor)
                for found in await find_diverged(backend, keys, PARTITIONS[CHAIN[processor]]):
                    way = Way(processor, found.partition, found.to)
                    is_told = (way.source, str(way.to), str(found.stands), str(found.since)) in told
                    if is_told and await accept_target(backend, keys, found):
                        self.accepted.setdefault(way, []).append(found)

    def look(self) -> Found:
        with opened(self.scene.url) as client:
            streams = {
                (stream, p): [
                    DECODERS[stream].decode(fields[b"v"]).n
                    for fields in records_of(client, StreamKeys("chain", stream).events(p))
                ]
                for stream, count in PARTITIONS.items()
                for p in range(count)
            }
        positions = self._positions()
        return Found(positions.heads, positions.taken, streams)

    def _positions(self) -> Positions:
        heads: dict[str, Heads] = {}
        taken: dict[Way, OutboxPosition] = {}
        with opened(self.scene.url) as client:
            for way in WAYS:
                if way.source not in heads:
                    stored = client.hgetall(way.keys.outbox(way.partition).heads)
                    heads[way.source] = heads_of([part for pair in stored.items() for part in pair])
                stands = client.hget(StreamKeys("chain", way.to.stream).taken(way.to.partition), way.source)
                taken[way] = OutboxPosition.parse(stands) if stands else START
        return Positions(heads, taken)

    # -- judging -------------------------------------------------------------------------------

    def judge(self) -> None:
        """Judge what has come since the last rest."""
        now = self.look()
        self._judge_sender(now)
        losses = self.scene.logged("forwarded_records_lost")
        for way in WAYS:
            self._judge_way(way, now, self._lost(way, now, losses))
        with opened(self.scene.url) as client:
            logs = read_logs(client, GroupKeys("chain", "summed", "report"), PARTITIONS["summed"])
        for partition, log in logs.items():
            rows = [row["n"] for entry in log for row in entry.rows]
            assert rows == now.streams["summed", partition], f"the acked log of partition {partition}"
        self.base, self.accepted = now, {}

    def _judge_sender(self, now: Found) -> None:
        there = Counter(n for p in range(PARTITIONS["items"]) for n in now.streams["items", p])
        assert not there or max(there.values()) == 1, "a send is in its stream twice"
        gone = {n: sent for n, sent in self._told.confirmed.items() if n not in there}
        silent = [n for n, sent in gone.items() if not self._told.reported(sent)]
        assert not silent, f"their sender was not told that they are lost: {silent[:20]} of {len(silent)}"
        assert self._told.reported_lost == len(gone)
        self.verdict.confirmed += len(self._told.confirmed)
        self.verdict.unsent += len(gone)

    def _judge_way(self, way: Way, now: Found, lost: set[int]) -> None:
        before, had = self.base.sent(way), self.base.arrived(way)
        sent, arrived = now.sent(way), now.arrived(way)
        assert now.head(way).records == len(sent), f"{way}: its source's numbers are not those of its records"
        assert sent[: len(before)] == before, f"{way}: of {before} is left {sent}"
        assert arrived[: len(had)] == had, f"{way}: of {had} is left {arrived}"
        sent, arrived = sent[len(before) :], arrived[len(had) :]
        accepted = self.accepted.get(way, [])
        # The number of a record counts from the first ever; these lists begin with the first that is new.
        lost = {number - len(before) - 1 for number in lost}
        if not accepted:
            expected = [n for place, n in enumerate(sent) if place not in lost]
            assert lost <= set(range(len(sent))), f"{way}: what was not sent was told as lost: {lost}"
            assert arrived == expected, f"{way}: of {sent} arrived {arrived}, and lost were told {lost}"
            self.verdict.lost += len(lost)
        else:
            assert len(accepted) == 1 and not lost, f"{way}: one failover, and told were {accepted}, {lost}"
            stands, since = (
                position.records - len(before) for position in (accepted[0].stands, accepted[0].since)
            )
            assert 0 <= since <= stands <= len(arrived), f"{way}: {accepted}"
            assert arrived[:since] == sent[:since], (
                f"{way}: of {sent} arrived {arrived}, both begin alike up to {since}, {accepted}"
            )
            assert arrived[stands:] == sent[since:], f"{way}: of {sent} arrived {arrived}, told {accepted}"
            self.verdict.doubled += stands - since

    def _lost(self, way: Way, now: Found, losses: list[dict[str, Any]]) -> set[int]:
        """Return the numbers of the records of which it was told since the last rest that the target lost."""
        told = set()
        for each in losses:
            if (each["source"], each["to"]) == (way.source, str(way.to)):
                stands = OutboxPosition.parse(each["stands"]).records
                told |= set(range(stands + 1, stands + each["records"] + 1))
        noted = {
            number
            for (to, first), last in now.heads[way.source].lost.items()
            if to == way.to
            for number in range(first, last + 1)
        }
        assert noted == told, f"{way}: the logs tell of {told}, and what `doctor` reads of {noted}"
        return {number for number in told if number > self.base.head(way).records}
