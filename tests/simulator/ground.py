"""What all parts of one simulation share: the clock, the random generator, the server and the network."""

from abc import ABC, abstractmethod

from streamworker.core.data.outbox import OutboxQueue
from streamworker.core.protocols.setup import Timing
from tests.simulator.checkers import Checker
from tests.simulator.clock import Dice, VirtualClock
from tests.simulator.faults import Conditions
from tests.simulator.server.model import RedisModel
from tests.simulator.transcript import Transcript


class Ground(ABC):
    """The surroundings of the workers, the senders and the faults."""

    random: Dice
    clock: VirtualClock
    model: RedisModel
    checker: Checker
    timing: Timing
    conditions: Conditions
    """The faults of the network and of handlers that last at this moment."""
    usual: Conditions
    trace: Transcript | None
    """Records the events and effects of the cores."""
    connections = 0
    has_timers = False
    """Whether each partition has a timer."""
    has_chains = False
    """Whether each batch sends a message to another stream."""
    queue = OutboxQueue
    """Decides about these messages."""

    @abstractmethod
    def load_of(self, partition: int) -> int:
        """Return a partition's load."""

    def latency_ms(self) -> int:
        """Return the time of one way through the network."""
        return self.random.randint(1, self.conditions.latency_ms)

    def new_connection(self) -> int:
        """Return the client id of a new connection."""
        self.connections += 1
        self.model.connections.add(self.connections)
        return self.connections

    def note(self, text: str) -> None:
        """Write a line to the transcript, if there is one."""
        if self.trace is not None:
            self.trace.happened(self.clock.now_ms, text)
