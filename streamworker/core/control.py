"""The messages that members send each other on the control stream.

The stream carries hints and a history; it is never the source of truth. A lost message costs one heartbeat:
the answer to the next heartbeat carries the generation. Messages are kept after they were read.
``streamworker history`` shows them: each change, and when the partitions that it moved ran again.

The kinds that only one protocol knows are in its folder. ``core.protocols.registry`` reads messages of all
kinds. A reader ignores a kind that its release does not know, so that a newer release can add kinds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from streamworker.core.words import Worded, name_of, runs


class ControlMessage(Worded, ABC):
    """A message on the control stream. Each kind is a frozen dataclass below, or in a protocol's folder."""

    __slots__ = ()
    kind: ClassVar[str]
    """The field ``kind`` of the stream's entry."""
    is_news: ClassVar[bool] = False
    """Whether a transcript shows that it was received even if it had no effects."""

    @abstractmethod
    def fields(self) -> dict[str, str]:
        """Return the message as the fields of a control stream entry, with its kind and generation."""

    @classmethod
    @abstractmethod
    def read(cls, fields: Mapping[str, str]) -> Self:
        """Return the message that has these fields; raise KeyError or ValueError if they are wrong."""


@dataclass(frozen=True, slots=True)
class GroupChanged(ControlMessage):
    """The group has a new generation: of the membership document, or of a partition's owner."""

    kind: ClassVar[str] = "changed"
    generation: int
    cause: str
    """The change, in one word; each protocol has its own."""
    member: str
    """Name of the member that the change concerns; several are separated by a space."""
    moved: tuple[int, ...]

    def fields(self) -> dict[str, str]:
        """Return the message as the fields of a control stream entry."""
        return {
            "kind": self.kind,
            "generation": str(self.generation),
            "cause": self.cause,
            "member": self.member,
            "moved": _join(self.moved),
        }

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> Self:
        """Return the message that has these fields."""
        return cls(int(fields["generation"]), fields["cause"], fields["member"], _split(fields["moved"]))

    def __str__(self) -> str:
        change = f"{self.cause} of {self.member}, moved {runs(self.moved)}"
        return f"changed, generation {self.generation}: {change}"


@dataclass(frozen=True, slots=True)
class PartitionsMessage(ControlMessage):
    """Something that one owner did with some partitions."""

    partitions: tuple[int, ...]
    owner: str
    generation: int

    def fields(self) -> dict[str, str]:
        """Return the message as the fields of a control stream entry."""
        partitions, generation = _join(self.partitions), str(self.generation)
        return {"kind": self.kind, "partitions": partitions, "owner": self.owner, "generation": generation}

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> Self:
        """Return the message that has these fields."""
        return cls(_split(fields["partitions"]), fields["owner"], int(fields["generation"]))

    def __str__(self) -> str:
        return f"{self.kind} {runs(self.partitions)} by {name_of(self.owner)}, generation {self.generation}"


@dataclass(frozen=True, slots=True)
class PartitionsReleased(PartitionsMessage):
    """A member released locks that other members may be waiting for."""

    kind: ClassVar[str] = "released"


@dataclass(frozen=True, slots=True)
class PartitionsAcquired(PartitionsMessage):
    """A member acquired locks and works on their partitions."""

    kind: ClassVar[str] = "acquired"


def together(messages: Iterable[ControlMessage]) -> list[ControlMessage]:
    """Merge the messages of one kind, owner and generation, one for each partition, into one message."""
    alike: dict[object, ControlMessage] = {}
    for message in messages:
        if not isinstance(message, PartitionsMessage):
            alike[message] = message
            continue
        key = (type(message), message.owner, message.generation)
        before = alike.get(key)
        known = before.partitions if isinstance(before, PartitionsMessage) else ()
        alike[key] = replace(message, partitions=(*known, *message.partitions))
    return list(alike.values())


def _join(partitions: Iterable[int]) -> str:
    return ",".join(str(partition) for partition in partitions)


def _split(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",")) if text else ()
