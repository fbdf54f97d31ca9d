"""A queue of an outbox, whatever arrives when: each message is forwarded once, and deleted when it is there.

The servers are lists. The target may go back to any of its states, its answers may be lost, and a round trip
that was given up may arrive late. The source keeps what it has: tests/chains/model.py differs there.
"""

from collections.abc import Sequence

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamworker.core.data.channel import AppendCode, AppendReply
from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import (
    START,
    Message,
    OutboxPosition,
    OutboxQueue,
    Standing,
    Target,
)
from tests.helpers import drawn

TO = Target("priced", 0)
PHASES = set(Phase) - {Phase.explain}  # It takes a minute.
NO_ANSWER = AppendReply(AppendCode.UNKNOWN)


class ForwardedOnce(RuleBasedStateMachine):
    """The source, the target, and the owners of the source one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox: list[Message] = []
        self.head, self.number = START, 0
        self.sent: list[int] = []
        """The records that were committed, in order."""
        self.states: list[tuple[OutboxPosition, list[int]]] = [(START, [])]
        """Where the target stood, and its records; now the last."""
        self.told = set[int]()
        """The records of which the owner was told that they are lost."""
        self.gone = set[int]()
        """The records that the target had and has lost."""
        self.late: list[list[Message]] = []
        self.take_over()

    # -- the servers -------------------------------------------------------------------------

    def arrive(self, messages: Sequence[Message], *, full: int = -1) -> list[AppendReply]:
        replies = []
        for index, message in enumerate(messages):
            stands, rows = self.states[-1]
            if stands == message.through:
                replies.append(AppendReply(AppendCode.OK))
            elif stands != message.since:
                replies.append(AppendReply(AppendCode.OTHER, str(stands).encode()))
            elif index == full:
                replies.append(AppendReply(AppendCode.FULL))
            else:
                records = range(message.through.records - len(message.data), message.through.records)
                self.states.append((message.through, [*rows, *records]))
                replies.append(AppendReply(AppendCode.OK))
        return replies

    @rule(back=st.integers(1, 5))
    def target_goes_back(self, back: int) -> None:
        had = self.states[-1][1]
        del self.states[max(1, len(self.states) - back) :]
        self.gone.update(set(had).difference(self.states[-1][1]))

    @precondition(lambda self: self.late)
    @rule()
    def arrive_late(self) -> None:
        self.arrive(self.late.pop())

    # -- the owner ---------------------------------------------------------------------------

    @rule()
    def take_over(self) -> None:
        """Another owner reads all that is there; what the last one had under way may arrive yet."""
        if getattr(self, "trip", None):
            self.late.append(self.trip)
        self.queue = OutboxQueue(TO)
        self.trip: list[Message] = []
        self.stands: OutboxPosition | None = None
        """Where the target stands, while that is compared."""
        self.found: tuple[list[Message], OutboxPosition] | None = None
        self.committed: list[Message] = []
        self.deletes: list[EntryId] = []
        self.through = self.last_put = 0
        for message in self.outbox:
            self.put(message)

    def put(self, message: Message) -> None:
        self.queue.put(message)
        self.last_put = message.number

    @rule(records=st.integers(1, 3), answered=st.booleans())
    def commit(self, records: int, *, answered: bool) -> None:
        through = self.head.after(records, b"x" * records)
        self.number += 1
        message = Message(self.number, TO, self.head, through, b"x" * records)
        self.sent += range(self.head.records, through.records)
        self.head = through
        self.outbox.append(message)
        self.committed.append(message)
        if answered:
            self.commit_is_answered()

    @precondition(lambda self: self.committed)
    @rule()
    def commit_is_answered(self) -> None:
        self.put(self.committed.pop(0))

    @rule(most=st.integers(1, 6))
    def begin(self, most: int) -> None:
        """Whoever may forward the queue asks for what is next, whatever is under way."""
        messages = self.queue.begin(most)
        assert not (messages and (self.trip or self.stands is not None)), "two round trips at once"
        self.trip = messages or self.trip

    @precondition(lambda self: self.trip)
    @rule(full=st.sampled_from([-1, -1, 0, 1]), how=st.sampled_from(["", "", "no answer", "late"]))
    def answer(self, full: int, how: str) -> None:
        messages, self.trip = self.trip, []
        if how == "late":
            self.late.append(messages)
        else:
            replies = self.arrive(messages, full=full)
        taken, stopped = self.queue.answered([NO_ANSWER] * len(messages) if how else replies)
        self.deletes += taken
        if stopped is not None and stopped.code is AppendCode.OTHER:
            self.stands, self.through = OutboxPosition.parse(stopped.value), self.last_put
        else:
            self.queue.is_busy = False

    @precondition(lambda self: self.stands is not None and self.found is None)
    @rule()
    def read(self) -> None:
        self.found = list(self.outbox), self.head

    @precondition(lambda self: self.found is not None)
    @rule()
    def compare(self) -> None:
        assert self.found is not None
        assert self.stands is not None
        stands, (chain, head) = self.stands, self.found
        self.stands = self.found = None
        taken, why = self.queue.compared(stands, chain, head, self.through)
        assert why is not Standing.DIVERGED
        self.deletes += taken
        if why is Standing.TARGET_WENT_BACK:
            self.told.update(range(stands.records, self.queue.messages[0].since.records))
            self.queue.accept(stands)
        self.queue.is_busy = False

    @precondition(lambda self: self.deletes)
    @rule()
    def delete(self) -> None:
        self.outbox = [message for message in self.outbox if message.id not in self.deletes]
        self.deletes = []

    # -- what must hold ----------------------------------------------------------------------

    @invariant()
    def nothing_is_doubled_or_out_of_order(self) -> None:
        rows = self.states[-1][1]
        assert rows == sorted(set(rows))

    @invariant()
    def its_bytes_are_counted(self) -> None:
        assert self.queue.held == sum(len(message.data) for message in self.queue.messages)

    def teardown(self) -> None:
        """Let all calls be answered: each record is there, or its loss was told."""
        for after in range(2):
            for _ in range(4 * len(self.outbox) + 8):
                while self.committed:
                    self.commit_is_answered()
                self.begin(6)
                if self.trip:
                    self.answer(-1, "")
                if self.stands is not None:
                    self.read()
                    self.compare()
            assert {message.id for message in self.outbox} <= set(self.deletes), "a message waits for ever"
            if not after:
                self.commit(1, answered=True)  # A target that is sent nothing more tells no loss.
        assert set(self.sent).difference(self.states[-1][1]) <= self.told <= self.gone


ForwardedOnce.TestCase.settings = settings(drawn(100), stateful_step_count=40, phases=PHASES)
TestForwardedOnce = ForwardedOnce.TestCase
