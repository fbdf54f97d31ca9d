"""The members of a group: one document in Redis, changed by compare-and-set.

The document is the only thing the group agrees on. A change is: read it, compute the next one
here, write it if its **generation** is still the one that was read. The script that writes it
raises the generation and posts to the control stream in the same step, so there is never a
change without its message. A worker acts on the newest document it knows, never on each in
turn: what lies between is of no interest to it.

A member that wants to go is first marked ``leaving``: it is assigned nothing, but it is still
a member, so nobody takes its locks before it has drained and released them. When it has, it
removes itself. A member that died is removed by a peer, and its locks are free from then on.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from streamworker.core.assignment import STRATEGIES, Owners
from streamworker.errors import ConfigurationError, CoordinationError

FORMAT = 1
"""Version of the document. A worker refuses one that it does not know."""


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
    state: Literal["active", "leaving"] = "active"


@dataclass(frozen=True, slots=True)
class Membership:
    """One version of the group."""

    generation: int
    """0 for a group that has no document yet."""
    partitions: int
    strategy: str
    members: tuple[Member, ...]
    """In join order."""
    owners: Owners

    # Invariant: len(owners) == partitions, and each owner is the id of an active member.

    @classmethod
    def empty(cls, partitions: int, strategy: str) -> Self:
        """Return the group before its first member."""
        if strategy not in STRATEGIES:
            known = ", ".join(sorted(STRATEGIES))
            raise ConfigurationError(f"There is no assignment {strategy!r}.", remedy=f"Use one of: {known}.")
        return cls(0, partitions, strategy, (), (None,) * partitions)

    def get(self, member_id: str) -> Member | None:
        """Return the member with this id."""
        return next((member for member in self.members if member.id == member_id), None)

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the ids of all members, leaving ones too: their locks are not free."""
        return tuple(member.id for member in self.members)

    def owned_by(self, member_id: str) -> frozenset[int]:
        """Return the partitions that this version assigns to a member."""
        return frozenset(p for p, owner in enumerate(self.owners) if owner == member_id)

    def with_member(self, member: Member, strategy: str | None = None) -> "Membership":
        """Return the group after a join; the same group if it has joined already.

        ``strategy`` is the joining member's: the group goes on with it, so that a rolling restart
        with another setting is all that it takes to change it.
        """
        if self.get(member.id):
            return self
        return self._reassigned((*self.members, member), strategy)

    def with_leaving(self, member_id: str) -> "Membership":
        """Return the group with one member marked as leaving, its partitions given away."""
        return self._reassigned(
            replace(member, state="leaving") if member.id == member_id else member for member in self.members
        )

    def without(self, member_ids: Iterable[str]) -> "Membership":
        """Return the group without some members, their partitions given away."""
        gone = frozenset(member_ids)
        return self._reassigned(member for member in self.members if member.id not in gone)

    def _reassigned(self, members: Iterable[Member], strategy: str | None = None) -> "Membership":
        kept, name = tuple(members), strategy or self.strategy
        active = [member.id for member in kept if member.state == "active"]
        owners = STRATEGIES[name](active, self.partitions, self.owners)
        return replace(self, strategy=name, members=kept, owners=owners)

    def body(self) -> str:
        """Return the document as JSON without its generation, which the script puts in front."""
        position = {member.id: index for index, member in enumerate(self.members)}
        return json.dumps(
            {
                "v": FORMAT,
                "partitions": self.partitions,
                "strategy": self.strategy,
                "members": [_member_fields(member) for member in self.members],
                "owners": [None if owner is None else position[owner] for owner in self.owners],
            },
            separators=(",", ":"),
        )

    @classmethod
    def parse(cls, document: bytes) -> Self:
        """Read a document.

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
            members = tuple(_read_member(each) for each in fields["members"])
            owners = tuple(_read_owner(members, index) for index in fields["owners"])
            membership = cls(
                int(fields["generation"]), int(fields["partitions"]), str(fields["strategy"]), members, owners
            )
        except (ValueError, OverflowError, RecursionError, LookupError, TypeError) as error:
            raise CoordinationError(
                f"The membership document cannot be read: {error!r}.",
                remedy="Something else wrote to it. Stop the workers, delete the key and start them again.",
            ) from error
        if len(owners) != membership.partitions or membership.strategy not in STRATEGIES:
            raise CoordinationError(
                f"The membership document names {len(owners)} owners for {membership.partitions} partitions "
                f"under the assignment {membership.strategy!r}.",
                remedy="Run the same release of streamworker on all workers of the group.",
            )
        return membership


def _member_fields(member: Member) -> dict[str, Any]:
    return {
        "id": member.id,
        "name": member.name,
        "host": member.host,
        "pid": member.pid,
        "joined_ms": member.joined_ms,
        "state": member.state,
    }


def _read_member(fields: dict[str, Any]) -> Member:
    state: Literal["active", "leaving"] = "leaving" if fields["state"] == "leaving" else "active"
    return Member(
        str(fields["id"]),
        str(fields["name"]),
        str(fields["host"]),
        int(fields["pid"]),
        int(fields["joined_ms"]),
        state,
    )


def _read_owner(members: tuple[Member, ...], index: int | None) -> str | None:
    if index is None:
        return None
    if index < 0:
        raise ValueError("an owner before the first member")
    return members[index].id
