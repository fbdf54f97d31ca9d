"""The senders of the simulator: entries that are sent until they are confirmed."""

from collections import Counter
from typing import TYPE_CHECKING

from streamworker.core.data.channel import AppendCode
from tests.simulator.process import CALL_TIMEOUT_MS, LATEST_MS

if TYPE_CHECKING:
    from tests.simulator.group import SimulatedGroup

SIZES = (1, 1, 7, 2, 1, 20, 3)
"""How many records the entries hold, in turn by the number of the first."""
LARGE, LARGE_EVERY = 1_000, 499


class Senders:
    """Sends an entry to a random partition every ``every_ms``, on average; with None only when told."""

    def __init__(self, ground: "SimulatedGroup", every_ms: int | None) -> None:
        self._ground, self._every_ms = ground, every_ms
        self._numbers: Counter[int] = Counter()
        """The number of the last record of each partition."""
        self._since: Counter[int] = Counter()
        """The number of the last record that each partition is known to have."""
        self._sending: set[int] = set()
        self.fills_entries = False
        """Whether entries hold many records."""
        ground.clock.after(0, self._send_some)

    def stop(self) -> None:
        """Send a last entry to each partition, and no more."""
        self._every_ms = None
        self.send_to_all()

    def send_to_all(self) -> None:
        """Send an entry to each partition that takes any."""
        for partition in self._ground.server.placement.active:
            self.send(partition)

    @property
    def is_sent(self) -> bool:
        """Whether every entry that was sent is confirmed."""
        return not self._sending

    def _send_some(self) -> None:
        if self._every_ms is not None:
            draw = self._ground.random.random
            active = self._ground.server.placement.active
            partition = active[int(draw() * len(active))]
            first = self._numbers[partition] + 1
            size = SIZES[first % len(SIZES)] if first % LARGE_EVERY else LARGE
            self.send(partition, size if self.fills_entries else 1)
            self._ground.clock.after(1 + int(draw() * 2 * self._every_ms), self._send_some)

    def send(self, partition: int, count: int = 1) -> None:
        """Send the partition's next entry, unless the last one is not confirmed yet."""
        if partition not in self._sending:
            self._sending.add(partition)
            self._numbers[partition] += count
            self._send(partition, self._numbers[partition], count)

    def _send(self, partition: int, number: int, count: int) -> None:
        """Send an entry until it is confirmed; after a lost answer the server gets it twice."""
        server, conditions = self._ground.server, self._ground.conditions
        chance = self._ground.random.random() if conditions.lost else 1.0
        if chance < conditions.lost / 2:
            self._ground.clock.after(CALL_TIMEOUT_MS, lambda: self._send(partition, number, count))
            return
        reply = server.append(partition, number, count, self._since[partition])
        if reply.code is AppendCode.OTHER:
            # A failover has lost what came before: this follows what the server still has.
            self._since[partition] = int(reply.value)
            reply = server.append(partition, number, count, self._since[partition])
        if reply.code is AppendCode.SEALED:
            # A producer sends the records to the partitions that follow; nothing was confirmed here.
            self._sending.discard(partition)
            return
        assert reply.is_there, reply
        self._ground.sent(partition)
        if conditions.repeated and self._ground.random.random() < conditions.repeated:
            run, since = server.runs, self._since[partition]
            self._ground.clock.after(
                self._ground.random.randint(1, LATEST_MS),
                lambda: server.append(partition, number, count, since) if server.runs == run else None,
            )
        if chance < conditions.lost:
            self._ground.clock.after(CALL_TIMEOUT_MS, lambda: self._send(partition, number, count))
        else:
            self._ground.checker.confirmed(partition, range(number - count + 1, number + 1))
            self._sending.discard(partition)
            self._since[partition] = number
