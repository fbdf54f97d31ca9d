"""The members of a group: one document in Redis, changed by compare-and-set on its **generation**.

The document is the only thing that the members agree on; docs/protocol.md tells how they change it. A worker
acts on the newest document that it knows and skips the versions between.

A member that wants to leave is first marked ``leaving``. It is assigned no partitions, but it is still a
member, so no other member takes its locks before it has drained and released them. Then it removes itself.
When a member dies, a peer removes it, and its locks are free from then on.

A member with a **static id** stays in the document after it leaves or dies. It is ``held`` for a while and
its partitions are parked, until it returns under the same static id or the hold expires. A rolling restart
therefore moves no partitions to other members.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Literal, NamedTuple, Self

import msgspec
from msgspec import structs

from streamworker.core.protocols.membership.assignment import STRATEGIES, Owners, moves
from streamworker.core.protocols.membership.weights import Weights
from streamworker.errors import ConfigurationError, CoordinationError, InternalError

RANKS_MAX = 8
"""A later member waits longer than an earlier one, up to this rank; all members beyond it wait equally
long."""
MINUTE_MS = 60_000
FORMATS = (1, 2)
"""Versions of the document format that this release writes: the second one with the field ``first``, if the
stream has grown while the group had a document. A release must write another version if it writes anything
that this release cannot read, even if only a new assignment. Workers leave a document of a higher version
alone. They treat anything else that they cannot read as damage and repair it. All versions share the
beginning, ``{"generation":N,``, and the field ``v``."""

WHOLE_MAX = 2**53
"""The largest number up to which Lua represents every whole number."""
FIRST_MAX = 2**20
"""More partitions than a stream ever has: a damaged document must not fill the memory."""
Whole = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_MAX)]
BEGINNING = b'{"generation":'
_REPAIRED_BY_WORKERS = (
    "Something else wrote to it. Its workers put it right within seconds, and so does the next one to start."
)


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker's membership in one group."""

    id: str
    """The owner's name in locks: the worker's name and a nonce, which is new for each join."""
    name: str
    host: str
    pid: Whole
    joined_ms: Whole
    """When it joined, by the server's clock."""
    state: Literal["active", "leaving", "held"] = msgspec.field(default_factory=lambda: "active")
    # The factory makes msgspec write the state always, although it omits the fields below at their defaults.
    static_id: str = ""
    """The id under which the worker returns after a restart; empty if the group does not hold its
    membership."""
    held_until_ms: Whole = 0
    """For a ``held`` member: when the hold expires, by the server's clock."""
    capacity: Annotated[int, msgspec.Meta(ge=1, le=WHOLE_MAX)] = 1
    """How much load it can carry, relative to the other members."""


@dataclass(frozen=True)
class Membership:
    """One version of the group. Derived values are cached, since each event needs some of them."""

    generation: int
    """0 if the group has no document yet."""
    partitions: int
    """How many the stream has, in all generations."""
    strategy: str
    members: tuple[Member, ...]
    """In join order."""
    owners: Owners
    """By partition; None also for those before ``first``."""
    weighed: tuple[int, ...] = ()
    """The weight of each partition when the balancer last wrote the weights; empty if it never did."""
    balanced: tuple[tuple[int, int], ...] = ()
    """For each of the balancer's changes in the last minute: its time by the server's clock, and its number
    of moves."""
    first: int | None = None
    """The first partition that the group works on; None if that has always been the first one of all."""

    # Invariants: len(owners) == partitions. Each owner is an active member, or a member with a static id
    # that is leaving or held (its partitions are parked). len(weighed) == partitions, or weighed is
    # empty.

    @classmethod
    def empty(cls, partitions: int, strategy: str, first: int | None = None) -> Self:
        """Return a group without members."""
        if strategy not in STRATEGIES:
            known = ", ".join(sorted(STRATEGIES))
            raise ConfigurationError(f"There is no assignment {strategy!r}.", remedy=f"Use one of: {known}.")
        return cls(0, partitions, strategy, (), (None,) * partitions, first=first or None)

    @property
    def active(self) -> range:
        """Return the partitions that the group works on."""
        return range(self.first or 0, self.partitions)

    def get(self, member_id: str) -> Member | None:
        """Return the member with this id."""
        return self._by_id.get(member_id)

    @cached_property
    def _by_id(self) -> dict[str, Member]:
        return {member.id: member for member in self.members}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Return the ids of all members, including leaving and held ones: their locks are not free."""
        return tuple(member.id for member in self.members)

    def present(self, member_id: str) -> Member | None:
        """Return the member with this id, unless it is only held."""
        member = self.get(member_id)
        return None if member is None or member.state == "held" else member

    @cached_property
    def present_ids(self) -> tuple[str, ...]:
        """Return the ids of the members that send heartbeats."""
        return tuple(member.id for member in self.members if member.state != "held")

    @cached_property
    def active_ids(self) -> tuple[str, ...]:
        """Return the ids of the members that partitions are assigned to."""
        return tuple(member.id for member in self.members if member.state == "active")

    @cached_property
    def weights(self) -> Weights:
        """Return the weights of the partitions and the capacities of the members."""
        return Weights(self.weighed, {each.id: each.capacity for each in self.members if each.capacity != 1})

    def names(self, member_ids: Collection[str]) -> str:
        """Return the names of some members, separated by spaces, for messages."""
        return " ".join(member.name for member in self.members if member.id in member_ids)

    def seat_of(self, static_id: str) -> Member | None:
        """Return the member with this static id, held or not."""
        return next((each for each in self.members if static_id and each.static_id == static_id), None)

    def seat_for(self, static_id: str, former: Iterable[str]) -> Member | None:
        """Return the member whose membership a worker takes over: a held one, or a former self of the worker.

        If two workers use one static id, the later one gets the membership: it may be the earlier one after a
        crash that no member has noticed yet. A worker that lost its membership this way does not take it
        back: for it this raises ConfigurationError.
        """
        seat, ours = self.seat_of(static_id), tuple(former)
        if seat and seat.state == "active" and ours and seat.id not in ours:
            raise ConfigurationError(
                f"Worker {seat.name!r} on {seat.host} took the static id {static_id!r} of this one.",
                remedy="Give each worker a static id of its own.",
            )
        return seat

    def expired(self, server_ms: int, by: str, pace_ms: int) -> tuple[str, ...]:
        """Return the members whose hold has expired, as one present member judges it.

        The first member in join order judges by the expiry itself, and each later one by ``pace_ms`` more, so
        that the group makes one change and not one change per member.
        """
        if len(self.present_ids) == len(self.members):
            return ()
        rank = min(self.present_ids.index(by), RANKS_MAX)
        return tuple(
            member.id
            for member in self.members
            if member.state == "held" and server_ms >= member.held_until_ms + rank * pace_ms
        )

    def moved(self, after: "Membership") -> tuple[int, ...]:
        """Return the partitions that a later version gives to others; a static member's return moves none."""
        seat = {each.id: f"={each.static_id}" for each in (*self.members, *after.members) if each.static_id}
        before, then = (tuple(o and seat.get(o, o) for o in each.owners) for each in (self, after))
        return moves(before, then)

    def owned_by(self, member_id: str) -> frozenset[int]:
        """Return the partitions that this version assigns to a member."""
        return frozenset(p for p, owner in enumerate(self.owners) if owner == member_id)

    def with_member(self, member: Member, strategy: str | None = None) -> "Membership":
        """Return the group after a join; the same group if the member has joined already.

        A member with a static id replaces the member that had this id, and takes over its partitions.
        ``strategy`` is the joining member's setting, and the group adopts it. A rolling restart with another
        setting is therefore enough to change the strategy.
        """
        if self.get(member.id):
            return self
        seat = self.seat_of(member.static_id)
        if seat is None:
            return self._reassigned((*self.members, member), strategy)
        taken = replace(self, owners=tuple(member.id if o == seat.id else o for o in self.owners))
        members = tuple(member if each is seat else each for each in self.members)
        return taken._reassigned(members, strategy)  # noqa: SLF001

    def with_members(
        self, members: Iterable[Member], joined_ms: int, former: Collection[str], strategy: str
    ) -> "Membership":
        """Return the group after several joins, without the former memberships of the same workers."""
        added = [structs.replace(each, joined_ms=joined_ms) for each in members if self.get(each.id) is None]
        kept = [each for each in self.members if each.id not in former]
        return self._reassigned((*kept, *added), strategy) if added else self

    def with_leaving(self, member_id: str) -> "Membership":
        """Return the group with one member marked as leaving and its partitions reassigned."""
        return self._reassigned(
            structs.replace(member, state="leaving") if member.id == member_id else member
            for member in self.members
        )

    def without(self, member_ids: Iterable[str]) -> "Membership":
        """Return the group without some members, with their partitions reassigned."""
        gone = frozenset(member_ids)
        if not gone:
            return self
        return self._reassigned(member for member in self.members if member.id not in gone)

    def with_gone(self, member_ids: Iterable[str], held_until_ms: int) -> "Membership":
        """Return the group after members left or died; those with a static id are held."""
        gone = frozenset(member_ids)
        return self._reassigned(
            structs.replace(member, state="held", held_until_ms=held_until_ms)
            if member.id in gone
            else member
            for member in self.members
            if member.id not in gone or member.static_id
        )

    def with_active(self, active: range) -> "Membership":
        """Return the group at work on other partitions; who no longer works on one has no other for it."""
        kept = [p in active and p < self.partitions for p in range(active.stop)]
        owners = tuple(self.owners[p] if is_kept else None for p, is_kept in enumerate(kept))
        weighed = tuple(self.weighed[p] if is_kept else 0 for p, is_kept in enumerate(kept) if self.weighed)
        changed = replace(self, first=active.start, partitions=active.stop, owners=owners, weighed=weighed)
        return changed._reassigned(self.members)  # noqa: SLF001

    def with_weights(self, weighed: tuple[int, ...]) -> "Membership":
        """Return the group with other weights; this moves no partition."""
        return replace(self, weighed=weighed)

    def with_moves(self, given: Mapping[int, str], server_ms: int) -> "Membership":
        """Return the group after the balancer gave partitions to other members."""
        recent = (each for each in self.balanced if self._is_recent(each[0], server_ms))
        owners = tuple(given.get(partition, owner) for partition, owner in enumerate(self.owners))
        return replace(self, owners=owners, balanced=(*recent, (server_ms, len(given))))

    def moves_in_minute(self, server_ms: int) -> int:
        """Return how many partitions the balancer moved in the last minute."""
        return sum(moved for at_ms, moved in self.balanced if self._is_recent(at_ms, server_ms))

    @staticmethod
    def _is_recent(at_ms: int, server_ms: int) -> bool:
        # A time after now was written before the server's clock was set back: it does not count.
        return server_ms - MINUTE_MS < at_ms <= server_ms

    def _reassigned(self, members: Iterable[Member], strategy: str | None = None) -> "Membership":
        after = replace(self, strategy=strategy or self.strategy, members=tuple(members))
        if after.strategy != "weighted":
            after = replace(after, weighed=(), balanced=())
        parked = {each.id for each in after.members if each.static_id and each.state != "active"}
        free = [p for p in self.active if self.owners[p] not in parked]
        weighed = tuple(after.weighed[p] for p in free) if after.weighed else ()
        weights = replace(after.weights, partitions=weighed)
        previous = tuple(self.owners[p] for p in free)
        given = STRATEGIES[after.strategy](after.active_ids, len(free), previous, weights)
        owners = list(self.owners)
        for partition, owner in zip(free, given, strict=True):
            owners[partition] = owner
        return replace(after, owners=tuple(owners))

    def document(self) -> bytes:
        """Return the whole document, as the script stores it."""
        return b"%s%d,%s" % (BEGINNING, self.generation, self.body()[1:].encode())

    def body(self) -> str:
        """Return the document as JSON without its generation, which the script adds at the front."""
        position: dict[str | None, int | None] = {each.id: index for index, each in enumerate(self.members)}
        owners = tuple(None if (owner := self.owners[p]) is None else position[owner] for p in self.active)
        weights = self.weighed[self.active.start :]
        version, first = (FORMATS[0], msgspec.UNSET) if self.first is None else (FORMATS[1], self.first)
        known = (self.partitions, self.strategy, self.members, owners, weights, self.balanced)
        body = msgspec.json.encode(_Body(version, *known, first))
        try:  # What the workers cannot read, they would repair again and again.
            self.parse(b"%s1,%s" % (BEGINNING, body[1:]))
        except CoordinationError as error:
            raise InternalError(f"The document of generation {self.generation}: {error.message}") from error
        return body.decode()

    @classmethod
    @lru_cache(maxsize=16)
    def parse(cls, document: bytes) -> Self:
        """Read a document; the documents that were read last are cached.

        Raise CoordinationError if the bytes are no membership document, or one of a version that this release
        does not know. Reading a document changes nothing.
        """
        try:
            head = Head.of(document)
            if head.v not in FORMATS:
                raise CoordinationError(
                    f"The membership document has format {head.v}, and this release knows {FORMATS[-1]}.",
                    remedy="Run the same release of streamworker on all workers of the group.",
                )
            if not head.begins(document):
                raise ValueError("it does not begin with its generation")
            body = _body_of(document)
            first = None if body.first is msgspec.UNSET else body.first
            if (first is None) == (head.v > FORMATS[0]):
                raise ValueError("its format is another one")
            dropped = first or 0
            owned = tuple(None if index is None else body.members[index].id for index in body.owners)
            owners = (None,) * dropped + owned
            weights = (0,) * dropped + body.weights if body.weights else ()
        except (ValueError, LookupError, RecursionError) as error:
            raise CoordinationError(
                f"The membership document cannot be read: {error!r}.", remedy=_REPAIRED_BY_WORKERS
            ) from error
        known = (body.partitions, body.strategy, body.members, owners, weights, body.balanced, first)
        membership = cls(head.generation, *known)
        has_all = len(weights) in (0, len(owners)) and len(owners) == membership.partitions > dropped
        if not has_all or membership.strategy not in STRATEGIES:
            raise CoordinationError(
                f"The membership document names {len(owners)} owners and {len(membership.weighed)} weights "
                f"for {membership.partitions} partitions under the assignment {membership.strategy!r}.",
                remedy=_REPAIRED_BY_WORKERS,
            )
        membership._check_members()
        return membership

    def _check_members(self) -> None:
        """Check that the members and the owners can be those of one group."""
        ids = set(self.ids)
        seats = [each.static_id for each in self.members if each.static_id]
        can_own = {each.id for each in self.members if each.state == "active" or each.static_id}
        is_idle = None in self.owners[self.active.start :] and bool(self.active_ids)
        if len(ids) < len(self.members) or len(set(seats)) < len(seats):
            wrong = "has a member twice"
        elif is_idle or not can_own.issuperset(filter(None, self.owners)):
            wrong = "leaves partitions to nobody, or to somebody who leaves"
        else:
            return
        raise CoordinationError(f"The membership document {wrong}.", remedy=_REPAIRED_BY_WORKERS)


class Head(msgspec.Struct):
    """What all versions of the document share; other fields are not looked at."""

    generation: Whole
    v: Whole

    @classmethod
    def of(cls, document: bytes) -> Self:
        """Read these two; raise ValueError or, if it is nested too deep, RecursionError."""
        return msgspec.json.decode(document, type=cls)

    def begins(self, document: bytes) -> bool:
        """Whether the document begins with its generation, as the scripts need it."""
        return self.generation > 0 and document.startswith(b"%s%d," % (BEGINNING, self.generation))


class _Body(msgspec.Struct, omit_defaults=True):
    v: int
    partitions: Whole
    strategy: str
    members: tuple[Member, ...]
    owners: tuple[Whole | None, ...]
    """Positions in ``members``, which are shorter than ids."""
    weights: tuple[Whole, ...] = ()
    balanced: tuple[tuple[Whole, Whole], ...] = ()
    first: Annotated[int, msgspec.Meta(ge=0, le=FIRST_MAX)] | msgspec.UnsetType = msgspec.UNSET
    """Of format 2; owners and weights then begin with this partition."""


_body_of = msgspec.json.Decoder(_Body).decode


class Change(NamedTuple):
    """A change of the document that a member wants; the texts say for people why, and whom it concerns."""

    cause: str
    member: str
    after: Membership
