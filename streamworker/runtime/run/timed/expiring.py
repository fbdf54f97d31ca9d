"""Calls a function at the ends of a table's values, and removes them in the same commit.

The commit that sets a value notes its end in an index. The owner of the partition reads there what has ended,
lets all be committed that the partition held at that time, and calls the function in the order of the ends. A
value stays until the commit of its call. So a record that comes before changes the value as if nothing had
ended, and a worker that dies leaves the call to the next owner.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamworker.core.data.entries import ZERO
from streamworker.core.policies import Skip
from streamworker.core.time.schedules import Due
from streamworker.core.units import moment
from streamworker.declaring.specs import ExpirySpec
from streamworker.redisio.data.state import Ran
from streamworker.redisio.data.statetables import read_ended
from streamworker.runtime.forward.routing import Routed
from streamworker.runtime.run.commits import Commits
from streamworker.runtime.run.failures import failure
from streamworker.runtime.run.invoke import Invoker
from streamworker.runtime.run.state import Changes, StateWithTables
from streamworker.runtime.run.timed.timers import Made, TimedCall

KEYS_MAX = 500
"""Values that one commit takes. With 2,000 of them other records waited 0.4 s (measured)."""
NEVER_MS = 1 << 60


class Expiry(TimedCall):
    """A function that is called at the ends of a table's values."""

    waits = True
    kind = "function"

    def __init__(
        self,
        spec: ExpirySpec,
        invoker: Invoker,
        stored: Mapping[str, bytes],
        rng: random.Random,
        commits: Commits,
    ) -> None:
        super().__init__(spec.name, invoker, stored, rng)
        assert isinstance(commits.state, StateWithTables)
        self.state = commits.state
        self.commits = commits
        self.table, self.form = spec.table.name, spec.table.form
        self.takes_many = spec.takes_many
        self.ends = self.state.ends[self.table]
        self.seen_ms = 0
        """The server's time at the last look, at which the partition was not sealed."""
        self._fields: Sequence[bytes] = ()
        self._has_more = False

    def looks(self, again: Callable[[], None]) -> None:
        """Forget what is known of the first end: commits that are confirmed from now on tell theirs."""
        self.ends.first_ms, self.ends.lowered = None, again

    def looked(self, at_ms: int, first_ms: int | None) -> None:
        """Take in when the first of the values ends, by a look at the index."""
        self.seen_ms = at_ms
        if first_ms is not None and (self.ends.first_ms is None or first_ms < self.ends.first_ms):
            self.ends.first_ms = first_ms

    def planned(self, now_ms: int, ends_ms: int | None) -> Due | None:
        """Return whether a value has ended; in a partition that takes nothing more its values go on."""
        first_ms = self.ends.first_ms
        if ends_ms is not None or first_ms is None or now_ms < self.not_before_ms:
            return None
        return Due(self.seen_ms, True) if first_ms <= self.seen_ms else None

    def is_through(self, ends_ms: int) -> bool:  # noqa: ARG002
        """Return True: partitions that follow take over values with their ends."""
        return True

    def next_ms(self, now_ms: int) -> int:
        """Return when the first value ends."""
        first_ms = self.ends.first_ms
        return max(self.not_before_ms, NEVER_MS if first_ms is None else first_ms, now_ms)

    def at_text(self, found: Due) -> str:
        """Return the time up to which values have ended."""
        return str(moment(found.at_ms))

    def limit_ms(self, found: Due) -> int:
        """Return up to which end values are called for."""
        return found.at_ms

    async def is_ready(self, found: Due) -> bool:
        """Read which values have ended, but those that commits under way may have given another end."""
        committer, partition = self.commits.committer, self.commits.start.partition
        index = committer.keys.due(partition, self.table)
        for _ in range(2):
            before = self.state.changed_in(self.table)
            fields = await read_ended(committer.backend, index, self.limit_ms(found), KEYS_MAX)
            self._fields = [field for field in fields if field not in before]
            if self._fields or not fields:
                break
            await self.commits.flush()
        self._has_more = len(fields) >= KEYS_MAX
        return bool(self._fields)

    async def make(self, found: Due) -> Made:
        """Call the function for what has ended; if it fails at a value, those before it are done."""
        bodies = await self.state.read(self.table, self._fields, {})
        ended = list(zip(self._fields, bodies, strict=True))
        # An index may name a value that another program has removed.
        self.state.keep({(self.table, field): None for field, body in ended if body is None})
        there = [(field, body) for field, body in ended if body is not None]
        made = Made({}, await self.call(there) if there else {})
        if self._has_more:
            self.held = found, ZERO  # The next call is for the same time, and need not wait.
        return made

    def ended(self, field: bytes, body: bytes) -> tuple[Sequence[Any], bytes | None]:
        """Return what the function is called with for a stored value, and what is left of the value."""
        return [(self.form.key_of(field, body), self.form.value_of(field, body))], None

    async def call(self, stored: Sequence[tuple[bytes, bytes]]) -> Routed:
        """Call the function for values that have ended, by their fields; return what it sends."""
        sends: Routed = {}
        if self.takes_many:
            ended = [(field, *self.ended(field, body)) for field, body in stored]
            left: Changes = {(self.table, field): rest for field, _, rest in ended}
            await self._call_one([each for _, given, _ in ended for each in given], left, sends)
            self.state.keep(left)
            return sends
        changed: set[str | tuple[str, bytes]] = set()
        for done, (field, body) in enumerate(stored):
            if (self.table, field) in changed:
                continue  # A call before has set or deleted it: it has another end, or none.
            left, its = {(self.table, field): None}, Routed()
            try:
                given, left[self.table, field] = self.ended(field, body)
                for each in given:
                    await self._call_one(each, left, its)
            except Exception as raised:
                if isinstance(error := failure(raised), Skip):
                    why = {"key": str(self.form.key_of(field, body)), "reason": str(error)}
                    self.commits.log.info("expiry_skipped", function=self.name, **why)
                elif done:
                    break  # What is done is committed, and the next call begins with this one.
                else:
                    raise
            self.state.keep(left)
            _add(sends, its)
            changed |= left.keys()
        return sends

    async def _call_one(self, argument: Any, left: Changes, sends: Routed) -> None:
        effects = await self.invoker.call_timed(argument, self.attempts)
        _, routed = self.invoker.convert(effects.outputs)
        left |= effects.changes or {}
        _add(sends, routed)

    def tick(self, found: Due, made: Made, now_ms: int, ran: Ran | None) -> tuple[bytes, Changes]:  # noqa: ARG002
        """Note a time that differs from the one before."""
        number = int(self.done.partition(b"/")[2] or 0) + 1
        return b"%d/%d" % (found.at_ms, number), {}


def _add(sends: Routed, more: Routed) -> None:
    for where, rows in more.items():
        sends.setdefault(where, []).extend(rows)
