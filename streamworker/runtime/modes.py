"""What all ways of calling a processor's function share: attempts, and what errors do.

The rules for errors are the same everywhere:

- A call that raises, times out or returns rows of another type has failed. What it forwarded and
  stored is dropped. It is made again, up to ``attempts`` times, with growing pauses.
- Then ``on_error`` decides. ``halt``: what came before is committed, nothing of the failed call
  is, and the partition stops. ``dead_letter`` and ``skip``: the records that make the call fail
  are found by halving the batch, and leave with the commit of the rest, whose order is kept.
- An entry that cannot be decoded takes the same road, without attempts: it would fail each time.
- A cancel, and a drain during a pause between attempts, give up the call: nothing is acked.
"""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from streamworker.core.entries import Entry
from streamworker.redisio.commit import DeadLetter
from streamworker.runtime.invoke import Effects, describe_error
from streamworker.runtime.pauses import Pauses
from streamworker.runtime.work import span

if TYPE_CHECKING:
    from streamworker.runtime.runner import PartitionRunner

SLICE_MS = 2
"""Records are handled one after the other for this long before the event loop gets its turn and a
commit may start. Shorter, and commits become many and small; longer, and other partitions wait."""

DEAD_FIELDS_MAX = 1_000
"""Fields of a dead letter. A script cannot pass on more than some thousand, and an entry of ours
has one and its headers."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A call whose attempts are used up."""

    error: Exception
    attempts: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A call that was not made again, because the partition is to be drained."""


class Mode(ABC):
    """One way of calling the function, for one partition."""

    def __init__(self, runner: "PartitionRunner") -> None:
        self.runner = runner
        self.spec = runner.spec
        self.invoker = runner.invoker
        self.state = runner.state
        self.log = runner.log

    @abstractmethod
    async def run(self) -> str:
        """Handle records until draining; return why the partition halts, or nothing.

        What is done was handed to a commit when this returns.
        """

    @property
    def is_busy(self) -> bool:
        """Whether calls run while the mode waits for entries, where several run at a time."""
        return False

    @property
    def oldest(self) -> str:
        """Id of the entry whose call has been running for longest, where several run at a time."""
        return ""

    @property
    def halts(self) -> bool:
        """Whether a record that cannot be handled stops the partition."""
        return self.spec.on_error == "halt"

    async def attempts(
        self,
        call: Callable[[int], Awaitable[Effects]],
        entries: Sequence[Entry],
        limit: int,
        *,
        first: int = 1,
        quiet: bool = False,
    ) -> Effects | Failed | GivenUp:
        """Make a call until it succeeds, ``limit`` attempts are used up or the partition drains.

        Parameters
        ----------
        call
            Makes attempt number so and so much.
        entries
            What the call is about, for the log.
        limit
            Number of the last attempt.
        first
            Number of the first; the attempts before it were made elsewhere and failed.
        quiet
            Log no failures: they are expected.
        """
        pauses = Pauses(self.runner.rng, first_ms=self.spec.backoff_ms, max_ms=self.spec.backoff_max_ms)
        for _ in range(1, first):
            if not await self.runner.pause(pauses.next_ms()):
                return GivenUp()
        attempt = first
        while True:
            self.runner.begins()
            try:
                effects = await call(attempt)
            except Exception as error:  # noqa: BLE001 - whatever a user function raises
                self.runner.busy_since_ms = None
                failed = Failed(error, attempt)
                if not quiet:
                    self.note_failure(entries, failed, limit)
            else:
                self.runner.ends()
                return effects
            if attempt >= limit:
                return failed
            if not await self.runner.pause(pauses.next_ms()):
                return GivenUp()
            attempt += 1

    def note_failure(self, entries: Sequence[Entry], failed: Failed, limit: int) -> None:
        """Log a failed call; the traceback with the first attempt only, since the others are alike."""
        details = {}
        if failed.attempts == 1:
            # As text: a renderer that is given the exception itself may show the records in its locals.
            details["exception"] = "".join(traceback.format_exception(failed.error))
        self.log.warning(
            "handler_failed",
            entries=span(entries) if entries else "none",
            attempt=failed.attempts,
            of=limit,
            error=describe_error(failed.error),
            **details,
        )

    def reason(self, entries: Sequence[Entry], failed: Failed) -> str:
        """Say why the partition halts."""
        tries = f" after {failed.attempts} attempts" if failed.attempts > 1 else ""
        what = span(entries) if entries else "the function, before it took a record,"
        return f"{what} failed{tries}: {describe_error(failed.error)}"

    def removed(self, entry: Entry, failed: Failed) -> list[DeadLetter]:
        """Take a record out that cannot be handled: a dead letter, or none where it is skipped."""
        error = describe_error(failed.error)
        event = "record_skipped" if self.spec.on_error == "skip" else "record_dead"
        self.log.error(event, entry=str(entry.id), attempts=failed.attempts, error=error)
        if self.spec.on_error == "skip":
            return []
        fields = entry.fields
        if len(fields) > DEAD_FIELDS_MAX:
            error = f"{error} ({DEAD_FIELDS_MAX} of {len(fields)} fields kept)"
            fields = dict(islice(fields.items(), DEAD_FIELDS_MAX))
        return [DeadLetter(entry_id=entry.id, fields=fields, error=error, attempts=failed.attempts)]
