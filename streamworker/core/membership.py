"""The members of a group: one document in Redis, changed by compare-and-set.

The document is the only thing the group agrees on. A change is: read it, compute the next one
here, write it if its **generation** is still the one that was read. The script that writes it
raises the generation and posts to the control stream in the same step, so there is never a
change without its message. A worker acts on the newest document it knows, never on each in
turn: what lies between is of no interest to it.

A member that wants to go is first marked ``leaving``: it is assigned nothing, but it is still
a member, so nobody takes its locks before it has drained and released them. When it has, it
removes itself. A member that died is removed by a peer, and its locks are free from then on.

A member with a **static id** keeps its place when it goes or dies: it is ``held`` for a while, its
partitions parked, until it comes back under the same static id or the hold is over. A rolling
restart then gives nobody's partitions to anybody else.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, Self

from streamworker.core.assignment import STRATEGIES, Owners, moves
from streamworker.core.weights import Weights
from streamworker.errors import ConfigurationError, CoordinationError

RANKS_MAX = 8
"""Beyond this rank members no longer wait longer for each other."""
MINUTE_MS = 60_000
FORMAT = 1
"""Version of the document. A release that writes what this one would not read must raise it, be it only
another assignment: of a greater one workers keep their hands off, and anything else that they cannot read is
damage to them, which they put right. What all versions share is the beginning, ``{"generation":N,``, and
``v``."""

WHOLE_MAX = 2**53
"""Beyond this Lua does not count by ones."""
BEGINNING = b'{"generation":'
_STATES: tuple[Literal["active", "leaving", "held"], ...] = ("active", "leaving", "held")
_MENDED_BY_WORKERS = (
    "Something else wrote to it. Its workers put it right within seconds, and so does the next one to start."
)


@dataclass(frozen=True, slots=True)
class Member:
    """One worker's place in one group."""

    id: str
    """The owner's name in locks: the worker's name and a nonce, fresh for each joining."""
    name: str
    host: str
    pid: int
    joined_ms: int
    """By the server's clock."""
    state: Literal["active", "leaving", "held"] = "active"
    static_id: str = ""
    """Under which it comes back after a restart; empty for a member without a place to keep."""
    held_until_ms: int = 0
    """``held``: until when, by the server's clock."""
    capacity: int = 1
    """What it can carry, beside others."""


@dataclass(frozen=True)
class Membership:
    """One version of the group. What follows from it is computed once: each event asks for some of it."""

    generation: int
    """0 for a group that has no document yet."""
    partitions: int
    strategy: str
    members: tuple[Member, ...]
    """In join order."""
    owners: Owners
    weighed: tuple[int, ...] = ()
    """What each partition weighed when the balancer last wrote that; empty if it never did."""
    balanced: tuple[tuple[int, int], ...] = ()
    """When the balancer moved something in the last minute, by the server's clock, and how much."""

    # Invariants: len(owners) == partitions, and each owner is an active member, or one with a static
    # id that is leaving or held: then the partition is parked. weighed is as long, or empty.

    @classmethod
    def empty(cls, partitions: int, strategy: str) -> Self:
        """Return the group before its first member."""
        if strategy not in STRATEGIES:
            known = ", ".join(sorted(STRATEGIES))
            raise ConfigurationError(f"There is no assignment {strategy!r}.", remedy=f"Use one of: {known}.")
        return cls(0, partitions, strategy, (), (None,) * partitions)

    def get(self, member_id: str) -> Member | None:
        """Return the member with this id."""
        return self._by_id.get(member_id)

    @cached_property
    def _by_id(self) -> dict[str, Member]:
        return {member.id: member for member in self.members}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Return the ids of all members, leaving and held ones too: their locks are not free."""
        return tuple(member.id for member in self.members)

    def present(self, member_id: str) -> Member | None:
        """Return the member with this id if it is there, and not only its place."""
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
        """Return what partitions weigh and members can carry."""
        return Weights(self.weighed, {each.id: each.capacity for each in self.members if each.capacity != 1})

    def names(self, member_ids: Collection[str]) -> str:
        """Return the names of some members, for people."""
        return " ".join(member.name for member in self.members if member.id in member_ids)

    def place_of(self, static_id: str) -> Member | None:
        """Return the member with this static id, held or not."""
        return next((each for each in self.members if static_id and each.static_id == static_id), None)

    def place_for(self, static_id: str, former: Iterable[str]) -> Member | None:
        """Return the place that is kept for a worker, or that a former self of it still has.

        Of two workers with one static id the later one has it: it may be the earlier one after a
        crash that nobody has noticed yet. Who was a member and lost it so does not take it back.

        Raises
        ------
        ConfigurationError
            If another worker has taken it.
        """
        place, ours = self.place_of(static_id), tuple(former)
        if place and place.state == "active" and ours and place.id not in ours:
            raise ConfigurationError(
                f"Worker {place.name!r} on {place.host} took the static id {static_id!r} of this one.",
                remedy="Give each worker a static id of its own.",
            )
        return place

    def expired(self, server_ms: int, by: str, pace_ms: int) -> tuple[str, ...]:
        """Return the members whose hold is over in the eyes of one present member.

        The first in join order sees it at once, and each later one by ``pace_ms`` later, so that
        one change is made and not one a member.
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
        """Return the partitions that a later version gives to others; one's own return is no move."""
        place = {each.id: f"={each.static_id}" for each in (*self.members, *after.members) if each.static_id}
        before, then = (tuple(o and place.get(o, o) for o in each.owners) for each in (self, after))
        return moves(before, then)

    def owned_by(self, member_id: str) -> frozenset[int]:
        """Return the partitions that this version assigns to a member."""
        return frozenset(p for p, owner in enumerate(self.owners) if owner == member_id)

    def with_member(self, member: Member, strategy: str | None = None) -> "Membership":
        """Return the group after a join; the same group if it has joined already.

        Who has a static id takes the place that is kept for it, and the partitions with it.
        ``strategy`` is the joining member's: the group goes on with it, so that a rolling restart
        with another setting is all that it takes to change it.
        """
        if self.get(member.id):
            return self
        place = self.place_of(member.static_id)
        if place is None:
            return self._reassigned((*self.members, member), strategy)
        taken = replace(self, owners=tuple(member.id if o == place.id else o for o in self.owners))
        members = tuple(member if each is place else each for each in self.members)
        return taken._reassigned(members, strategy)  # noqa: SLF001

    def with_members(
        self, members: Iterable[Member], joined_ms: int, former: Collection[str], strategy: str
    ) -> "Membership":
        """Return the group after several joins, without what the same workers were before."""
        added = [replace(each, joined_ms=joined_ms) for each in members if self.get(each.id) is None]
        kept = [each for each in self.members if each.id not in former]
        return self._reassigned((*kept, *added), strategy) if added else self

    def with_leaving(self, member_id: str) -> "Membership":
        """Return the group with one member marked as leaving, its partitions given away."""
        return self._reassigned(
            replace(member, state="leaving") if member.id == member_id else member for member in self.members
        )

    def without(self, member_ids: Iterable[str]) -> "Membership":
        """Return the group without some members, their partitions given away."""
        gone = frozenset(member_ids)
        if not gone:
            return self
        return self._reassigned(member for member in self.members if member.id not in gone)

    def with_gone(self, member_ids: Iterable[str], held_until_ms: int) -> "Membership":
        """Return the group after members left or died; the places of static ones are held."""
        gone = frozenset(member_ids)
        return self._reassigned(
            replace(member, state="held", held_until_ms=held_until_ms) if member.id in gone else member
            for member in self.members
            if member.id not in gone or member.static_id
        )

    def with_weights(self, weighed: tuple[int, ...]) -> "Membership":
        """Return the group with other weights; nothing moves by that."""
        return replace(self, weighed=weighed)

    def with_moves(self, given: Mapping[int, str], server_ms: int) -> "Membership":
        """Return the group after the balancer gave partitions to others."""
        recent = (each for each in self.balanced if self._is_recent(each[0], server_ms))
        owners = tuple(given.get(partition, owner) for partition, owner in enumerate(self.owners))
        return replace(self, owners=owners, balanced=(*recent, (server_ms, len(given))))

    def moves_in_minute(self, server_ms: int) -> int:
        """Return how many partitions the balancer moved in the last minute."""
        return sum(moved for at_ms, moved in self.balanced if self._is_recent(at_ms, server_ms))

    @staticmethod
    def _is_recent(at_ms: int, server_ms: int) -> bool:
        # What is later than now was written before the server's clock was set back: it does not count.
        return server_ms - MINUTE_MS < at_ms <= server_ms

    def _reassigned(self, members: Iterable[Member], strategy: str | None = None) -> "Membership":
        after = replace(self, strategy=strategy or self.strategy, members=tuple(members))
        if after.strategy != "weighted":
            after = replace(after, weighed=(), balanced=())
        parked = {each.id for each in after.members if each.static_id and each.state != "active"}
        free = [p for p, owner in enumerate(self.owners) if owner not in parked]
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
        """Return the document as JSON without its generation, which the script puts in front."""
        position = {member.id: index for index, member in enumerate(self.members)}
        fields: dict[str, Any] = {
            "v": FORMAT,
            "partitions": self.partitions,
            "strategy": self.strategy,
            "members": [member_fields(member) for member in self.members],
            "owners": [None if owner is None else position[owner] for owner in self.owners],
        }
        if self.weighed:
            fields["weights"] = self.weighed
        if self.balanced:
            fields["balanced"] = self.balanced
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    @lru_cache(maxsize=16)
    def parse(cls, document: bytes) -> Self:
        """Read a document; one that was read lately is not read again.

        Raises
        ------
        CoordinationError
            If it is no membership document, or one of a version that this release does not
            know. Nothing is changed by reading it.
        """
        try:
            fields = json.loads(document)
            if fields["v"] != FORMAT:
                raise CoordinationError(
                    f"The membership document has format {fields['v']!r}, and this release knows {FORMAT}.",
                    remedy="Run the same release of streamworker on all workers of the group.",
                )
            members = tuple(read_member(each) for each in fields["members"])
            owners = tuple(_read_owner(members, index) for index in fields["owners"])
            generation = read_whole(fields["generation"])
            if not generation or not document.startswith(b"%s%d," % (BEGINNING, generation)):
                raise ValueError("it does not begin with its generation")
            membership = cls(
                generation,
                read_whole(fields["partitions"]),
                str(fields["strategy"]),
                members,
                owners,
                tuple(read_whole(each) for each in fields.get("weights", ())),
                tuple((read_whole(at), read_whole(moved)) for at, moved in fields.get("balanced", ())),
            )
        except (ValueError, OverflowError, RecursionError, LookupError, TypeError) as error:
            raise CoordinationError(
                f"The membership document cannot be read: {error!r}.", remedy=_MENDED_BY_WORKERS
            ) from error
        has_all = len(membership.weighed) in (0, len(owners)) and len(owners) == membership.partitions
        if not has_all or membership.strategy not in STRATEGIES:
            raise CoordinationError(
                f"The membership document names {len(owners)} owners and {len(membership.weighed)} weights "
                f"for {membership.partitions} partitions under the assignment {membership.strategy!r}.",
                remedy=_MENDED_BY_WORKERS,
            )
        membership._check_members()
        return membership

    def _check_members(self) -> None:
        """See whether the members can be those of one group, and the owners its assignment."""
        ids = set(self.ids)
        places = [each.static_id for each in self.members if each.static_id]
        can_own = {each.id for each in self.members if each.state == "active" or each.static_id}
        is_idle = None in self.owners and bool(self.active_ids)
        if len(ids) < len(self.members) or len(set(places)) < len(places):
            wrong = "has a member twice"
        elif is_idle or not can_own.issuperset(filter(None, self.owners)):
            wrong = "leaves partitions to nobody, or to somebody who leaves"
        else:
            return
        raise CoordinationError(f"The membership document {wrong}.", remedy=_MENDED_BY_WORKERS)


def member_fields(member: Member) -> dict[str, Any]:
    """Return a member as JSON has it."""
    fields: dict[str, Any] = {
        "id": member.id,
        "name": member.name,
        "host": member.host,
        "pid": member.pid,
        "joined_ms": member.joined_ms,
        "state": member.state,
    }
    if member.static_id:
        fields["static_id"] = member.static_id
    if member.state == "held":
        fields["held_until_ms"] = member.held_until_ms
    if member.capacity != 1:
        fields["capacity"] = member.capacity
    return fields


def read_member(fields: dict[str, Any]) -> Member:
    """Read a member from what JSON has."""
    states: dict[str, Literal["active", "leaving", "held"]] = {each: each for each in _STATES}
    return Member(
        _read_text(fields["id"]),
        _read_text(fields["name"]),
        _read_text(fields["host"]),
        read_whole(fields["pid"]),
        read_whole(fields["joined_ms"]),
        states[fields["state"]],
        _read_text(fields.get("static_id", "")),
        read_whole(fields.get("held_until_ms", 0)),
        max(1, read_whole(fields.get("capacity", 1))),
    )


def read_whole(value: Any) -> int:
    """Read a number that counts something: JSON has others too."""
    if type(value) is not int or not 0 <= value <= WHOLE_MAX:
        raise ValueError("a weight, time or number that is not whole")
    return value


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name that is no text")
    return value


def _read_owner(members: tuple[Member, ...], index: int | None) -> str | None:
    return None if index is None else members[read_whole(index)].id
