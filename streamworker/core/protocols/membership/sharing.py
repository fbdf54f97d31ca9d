"""One worker's part in sharing by load: it measures, and looks at all loads while it is the balancer."""

from collections.abc import Collection

from streamworker.core.events import Effect
from streamworker.core.protocols.membership.balance import Balancer, Verdict
from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.membership.events import LoadsRead, ReportLoad
from streamworker.core.protocols.membership.settings import BalanceRules


class Sharing:
    """What a worker does under the assignment ``weighted``; under the others it does nothing."""

    def __init__(self, rules: BalanceRules) -> None:
        self._rules = rules
        self._balancer = Balancer(rules)
        self._verdict: Verdict | None = None
        self._is_measuring = self._is_balancer = False

    def measure(self, now: Membership) -> list[Effect]:
        """Begin to measure the load of this worker's partitions, or stop, if the assignment has changed."""
        if self._is_measuring == (now.strategy == "weighted"):
            return []
        self._is_measuring = not self._is_measuring
        return [ReportLoad(self._rules.interval_ms if self._is_measuring else 0)]

    def take_turn(self, now: Membership, me: str, silent: Collection[str]) -> None:
        """Determine whether this worker is the balancer: the first active member that is not silent."""
        self._is_balancer = False
        if now.strategy == "weighted":
            self._is_balancer = next((each for each in now.active_ids if each not in silent), "") == me

    def advance(self, now_ms: int, *, is_member: bool) -> list[Effect]:
        """Read the loads when a look is due."""
        return self._balancer.advance(now_ms, is_our_turn=self._is_balancer and is_member)

    def next_deadline_ms(self) -> int | None:
        """Return when ``advance`` has something to do next."""
        return self._balancer.next_deadline_ms()

    def failed(self) -> None:
        """Note that the loads could not be read."""
        self._balancer.failed()

    def seen(self, event: LoadsRead, now: Membership) -> None:
        """Handle the loads of all members."""
        self._verdict = self._balancer.seen(event, now)

    def change(self, now: Membership, me: str) -> tuple[str, str, Membership] | None:
        """Return the change that the last look asks for, once: its cause, its members, the next version."""
        verdict, self._verdict = self._verdict, None
        if verdict is None or verdict.before != now.generation:
            return None
        givers = {owner for p in now.moved(verdict.after) if (owner := now.owners[p])}
        return verdict.cause, now.names(givers or {me}), verdict.after
