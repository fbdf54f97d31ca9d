"""The base of the modes, which call a processor's function: retries and error handling.

The rules for errors are the same in all modes:

- A call fails if it raises (anything, see ``failures.failure``), times out or returns rows of another type.
  The rows that it forwarded and the state that it stored are dropped. The policy of its error decides
  whether the mode calls the function again, after a pause.
- After the last attempt the mode finds the records that make the call fail by halving the batch. What
  follows applies to each of them alone. ``DeadLetter`` and ``Skip`` remove it in the commit of the rest,
  which stays in order. ``Halt``: the mode commits what came before the record, and stops the partition.
- A policy that the function raises about its one record decides about that record.
- A call that ends by a cancel of its task, and not by this worker, is made again at once and does not count:
  an earlier call may have left what has cancelled it. If the next call ends so, too, it fails.
- An entry that cannot be decoded is not tried again: it would fail each time.
- An entry that is replayed for another group counts as done without a call.
- On a cancel, and on a drain during a backoff, the mode gives up the call: nothing is acked.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from structlog.stdlib import BoundLogger

from streamworker.core.data.batching import BatchLimits
from streamworker.core.data.entries import Entry
from streamworker.core.pauses import pause_ms
from streamworker.core.policies import CHOICES, DeadLetter, Halt, Late, Policy, Retry, Skip
from streamworker.core.text import storable
from streamworker.declaring.specs import FunctionMode, ProcessorSpec
from streamworker.errors import ProcessingError
from streamworker.records.entries import REPLAYED_FOR
from streamworker.redisio.data.commit import DeadEntry
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.observing import Observer
from streamworker.runtime.risks import HeldBack
from streamworker.runtime.run.commits import Work, ids_of, span
from streamworker.runtime.run.failures import (
    Left,
    cancelled_by,
    describe_error,
    failure,
    traceback_of,
    was_cancelled,
)
from streamworker.runtime.run.intake import Intake
from streamworker.runtime.run.invoke import NOT_OURS, Effects, Invoker, SetAside
from streamworker.runtime.tracing.ids import noted_trace_ids

SLICE_MS = 2
"""A mode handles records one after the other for this long before it yields to the event loop and a commit
may start. If it were shorter, commits would be many and small; if longer, other partitions would wait."""

HALTED_AT_BYTES = 64 * 1024
"""A halted partition checks repeatedly whether somebody deleted the entries it halted at, up to this size."""

TRACEBACK_MAX = 4_000
"""Characters of a traceback that a dead letter keeps: its end, which names the user's code and the error."""
AGAIN = Retry(backoff=0)
"""What is done about a call that does not count."""
LATE_TOLD_MS = 60_000
"""How often a partition tells of records that are late: they are no fault."""
DEAD_FIELDS_MAX = 1_000
"""Maximum fields of a dead letter. A script can pass on a few thousand fields at most. An entry of
streamworker has one field and its headers."""


class LateRecords:
    """Counts records that come when all of their windows are over, and tells of them once a minute."""

    def __init__(self, spec: ProcessorSpec, log: BoundLogger, observer: Observer | None) -> None:
        self._spec = spec
        self._log = log
        self._observer = observer
        self._untold = 0
        self._told_ms: int | None = None

    def note(self, how: str) -> None:
        """Note one, and say by how much it is late."""
        self._untold += 1
        if self._observer is not None:
            self._observer.was_late(self._spec)
        now_ms = monotonic_ms()
        if self._told_ms is None or now_ms >= self._told_ms + LATE_TOLD_MS:
            self._log.warning("records_late", records=self._untold, newest=how)
            self._untold, self._told_ms = 0, now_ms


@dataclass(frozen=True, slots=True)
class Failed:
    """A call that has failed, and how many attempts it had."""

    error: Exception
    attempts: int
    is_free: bool = False
    """Whether the last call does not count among them, and is made again whatever the policy."""


class Mode(ABC):
    """One way of calling the function, for one partition."""

    def __init__(self, invoker: Invoker, intake: Intake, rng: random.Random) -> None:
        self.spec = invoker.spec
        self.invoker = invoker
        invoker.naming = intake.naming
        self.state = invoker.state
        self.log = invoker.owned.log
        self.intake = intake
        self.activity = intake.activity
        self.commits = intake.commits
        self.observer = intake.commits.observer
        self.rng = rng
        self.spans = self.commits.spans
        self.late = LateRecords(self.spec, self.log, self.observer)
        self.in_call: Sequence[Entry] = ()
        """The entries of the last call, in modes that make one call at a time."""
        self.halted_at: Sequence[Entry] = ()
        """The entries that the partition halts at, or the first of them."""

    @abstractmethod
    async def run(self) -> str:
        """Handle records until draining; return why the partition halts, or an empty text.

        When this returns, the mode has submitted a commit for all that is done.
        """

    async def take(
        self, limits: BatchLimits, interrupted: Callable[[], bool] = lambda: False
    ) -> Sequence[Entry]:
        """Return ``intake.next_entries``; call the timers that are due meanwhile."""
        while True:
            entries = await self.intake.next_entries(limits, interrupted)
            if entries or interrupted() or self.intake.draining:
                return entries
            await self.run_timers()

    async def run_timers(self) -> None:
        """Call the timers that are due, and commit what they did."""
        timers = self.intake.timers
        self.in_call = ()
        while timers.are_due and await self.intake.wait_may_start():
            self.activity.begins()
            try:
                tick = await timers.next()
            finally:
                self.activity.ends()
            if tick is not None:
                self.state.keep(tick.changes)
                state = {**tick.fields, **self.state.seal()}
                work = Work(
                    sends=tick.sends,
                    timer=tick.timer,
                    before=tick.before,
                    knows_end=tick.knows_end,
                    state=state,
                )
                await self.commits.submit(work)

    @staticmethod
    def in_work_max(spec: ProcessorSpec) -> int:
        """Return how many entries an owner may have begun and not committed: a batch, and one in a commit."""
        return 2 * spec.batch

    @property
    def oldest(self) -> str:
        """Ids of the entries whose call has run for longest; empty if no call runs."""
        return "" if self.activity.busy_since_ms is None else ids_of(self.in_call)

    def policy(self, failed: Failed) -> Policy:
        """Return what to do about a failed call, or about an entry without a record."""
        if failed.is_free:
            return AGAIN
        if failed.error is NOT_OURS:
            return Skip()
        if isinstance(failed.error, SetAside):
            return DeadLetter()
        if isinstance(failed.error, HeldBack):
            return Halt()  # Middleware ends its process, whichever the record.
        return self.spec.options.policies.after(failed.error, failed.attempts)

    def halts(self, failed: Failed) -> bool:
        """Return whether a record that cannot be handled halts the partition."""
        return isinstance(self.policy(failed), Halt)

    async def attempts(
        self,
        call: Callable[[int], Awaitable[Effects]],
        entries: Sequence[Entry],
        *,
        failed: Failed | None = None,
        before: int = 0,
    ) -> Effects | Failed | None:
        """Make a call until it succeeds or its attempts are used up; None if the partition drains.

        ``call`` takes the number of the attempt. ``failed`` is the first attempt, if the caller has already
        made it. ``before`` counts attempts that the caller made with these records and others. If no
        attempt is left after those, a failure is expected, and is not logged.
        """
        while True:
            if failed is not None:
                policy = self.policy(failed)
                if not before or failed.attempts > before + 1 or isinstance(policy, Retry):
                    self.note_failure(entries, failed)
                if not isinstance(policy, Retry):
                    self.activity.recovers()
                    return failed
                if not await self.wait(entries, failed, policy):
                    return None
            if not before and not failed and self.intake.tries.before:
                before = self.intake.tries.made(entries)
            attempt = 1 + (failed.attempts if failed else before)
            self.in_call = entries
            self.activity.begins()
            try:
                with Left(self.spec.function):
                    effects = await call(attempt)
            except BaseException as raised:  # noqa: BLE001 - whatever a user function raises
                failed = self.failed(raised, attempt, failed)
            else:
                self.activity.recovers()
                return effects
            finally:
                self.activity.ends()

    def failed(
        self,
        raised: BaseException,
        attempt: int,
        before: Failed | None = None,
        *,
        is_one: bool | None = None,
    ) -> Failed:
        """Return the failure of a call from what it raised; ``before`` is that of the same records' last one.

        ``is_one`` tells whether the call had one record by its kind, which a policy may be raised about; if
        None, the function's mode tells.
        """
        is_free = was_cancelled(raised) and not (before is not None and before.is_free)
        error = failure(raised)
        if is_free:
            return Failed(error, attempt - 1, is_free=True)
        if self.observer is not None and not isinstance(error, CHOICES):
            self.observer.failed(self.spec, error)
        if is_one is None:
            is_one = self.spec.mode is FunctionMode.RECORD
        if isinstance(error, CHOICES) and not is_one:
            wrong = ProcessingError(
                f"Processor {self.spec.name!r} raised {storable(error, repr)} about several records.",
                remedy='Raise Skip("why") or DeadLetter("why") about one of a window.'
                if self.spec.window
                else 'Name the record instead: ctx.skip(record, "why") or ctx.dead_letter(record, "why").',
            )
            error = wrong.with_traceback(error.__traceback__)
        return Failed(error, attempt)

    async def wait(
        self, entries: Sequence[Entry], failed: Failed, retry: Retry, call: int = 0, also: str = ""
    ) -> bool:
        """Wait for the next attempt, and show that; return False if the partition drains meanwhile."""
        wait_ms = pause_ms(
            failed.attempts, self.rng.random, first_ms=retry.backoff_ms, max_ms=retry.backoff_max_ms
        )
        what = f" at {span(entries)}" if entries else ""
        self.activity.retries(f"{describe_error(failed.error)}{what}{also}", failed.attempts, wait_ms, call)
        if not await self.intake.pause(wait_ms):
            return False
        if retry.attempts is not None and entries:
            await self.intake.retry(entries[0], failed.attempts + 1)
        if self.observer is not None:
            self.observer.retried(self.spec)
        return True

    def note_failure(self, entries: Sequence[Entry], failed: Failed) -> None:
        """Log a failed call, with the traceback of the first attempt only: the others are similar."""
        if isinstance(failed.error, Skip | DeadLetter):
            return  # The function has decided so; `removed` logs it.
        if failed.is_free:
            reason = cancelled_by(self.spec.function)
            self.log.warning("call_cancelled", entries=span(entries) if entries else "none", reason=reason)
            return
        details = noted_trace_ids(failed.error)
        if failed.attempts == 1:
            # As text: a renderer that gets the exception itself may show records from its local variables.
            details = {**details, "exception": traceback_of(failed.error)}
        self.log.warning(
            "handler_failed",
            entries=span(entries) if entries else "none",
            attempt=failed.attempts,
            policy=storable(self.policy(failed), repr),
            error=describe_error(failed.error),
            **details,
        )

    def reason(self, entries: Sequence[Entry], failed: Failed) -> str:
        """Return why the partition halts, and note the entries that it halts at."""
        tries = f" after {failed.attempts} attempts" if failed.attempts > 1 else ""
        few = sum(size <= HALTED_AT_BYTES for size in accumulate(entry.size for entry in entries))
        self.halted_at = entries[: max(few, 1)]
        what = span(entries) if entries else "the function, before it took a record,"
        return f"{what} failed{tries}: {describe_error(failed.error)}"

    def removed(self, entry: Entry, failed: Failed) -> list[DeadEntry]:
        """Remove a record that cannot be handled: return its dead letter, or none if it is skipped."""
        if failed.error is NOT_OURS:
            return []
        policy = self.policy(failed)
        if isinstance(policy, Late):
            self.late.note(policy.reason)
            if not policy.is_kept:
                return []
        error = policy.reason if isinstance(policy, Late) else describe_error(failed.error)
        if policy.reason and policy is not failed.error:
            error = f"{error}: {policy.reason}"
        details: dict[str, object] = {"entry": str(entry.id), "attempts": failed.attempts, "error": error}
        details |= noted_trace_ids(failed.error)
        if isinstance(policy, Skip):
            self.log.warning("record_skipped", **details)
            return []
        if not isinstance(policy, Late):
            self.log.error("record_dead", **details)
        trace = traceback_of(failed.error)[-TRACEBACK_MAX:] if failed.attempts else ""
        fields = {name: value for name, value in entry.fields.items() if name != REPLAYED_FOR}
        if len(fields) > DEAD_FIELDS_MAX:
            error = f"{error} ({DEAD_FIELDS_MAX} of {len(fields)} fields kept)"
            fields = dict(islice(fields.items(), DEAD_FIELDS_MAX))
        return [DeadEntry(entry.id, fields, error, failed.attempts, traceback=trace)]

    def set_aside(self, entries: Sequence[Entry], effects: Effects, attempt: int) -> list[DeadEntry]:
        """Remove the records that a call with these entries named by ``ctx.skip`` and ``ctx.dead_letter``."""
        return [
            letter
            for index, policy in sorted((effects.removed or {}).items())
            for letter in self.removed(entries[index], Failed(policy, attempt))
        ]
