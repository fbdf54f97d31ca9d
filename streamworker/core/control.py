"""The messages that members send each other on the control stream.

The stream carries hints and a history; it is never the source of truth. A lost message costs one heartbeat:
the answer to the next heartbeat carries the generation. Messages are kept after they were read.
``streamworker history`` shows them: each change, and when the partitions that it moved ran again.

The kinds that only one protocol knows are in its folder. ``core.protocols.registry`` reads messages of all
kinds. A reader ignores a kind that its release does not know, so that a newer release can add kinds.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any, ClassVar, Self

from streamworker.core.words import Worded, name_of, ranges


def _split(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",")) if text else ()


_READERS: dict[Any, Callable[[str], object]] = {int: int, str: str, tuple[int, ...]: _split}
"""How a field is read, by its type; a message has fields of these types only."""


class ControlMessage(Worded):
    """A message on the control stream; its entry there has the kind and the fields of the message."""

    kind: ClassVar[str]
    """The field ``kind`` of the stream's entry."""
    is_news: ClassVar[bool] = False
    """Whether a transcript shows that it was received even if it had no effects."""

    def fields(self) -> dict[str, str]:
        """Return the message as the fields of a control stream entry."""
        values = {each.name: getattr(self, each.name) for each in fields_of(self)}
        texts = {k: ",".join(map(str, v)) if isinstance(v, tuple) else str(v) for k, v in values.items()}
        return {"kind": self.kind, **texts}

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> Self:
        """Return the message that has these fields; raise KeyError or ValueError if they are wrong."""
        return cls(**{each.name: _READERS[each.type](fields[each.name]) for each in fields_of(cls)})


class GroupChanged(ControlMessage):
    """The group has a new generation: of the membership document, or of a partition's owner."""

    kind: ClassVar[str] = "changed"
    generation: int
    cause: str
    """The change, in one word; each protocol has its own."""
    member: str
    """Name of the member that the change concerns; several are separated by a space."""
    moved: tuple[int, ...]

    def __str__(self) -> str:
        change = f"{self.cause} of {self.member}, moved {ranges(self.moved)}"
        return f"changed, generation {self.generation}: {change}"


class PartitionsMessage(ControlMessage):
    """Something that one owner did with some partitions."""

    partitions: tuple[int, ...]
    owner: str
    generation: int

    def __str__(self) -> str:
        return f"{self.kind} {ranges(self.partitions)} by {name_of(self.owner)}, generation {self.generation}"


class PartitionsReleased(PartitionsMessage):
    """A member released locks that other members may be waiting for."""

    kind: ClassVar[str] = "released"


class PartitionsAcquired(PartitionsMessage):
    """A member acquired locks and works on their partitions."""

    kind: ClassVar[str] = "acquired"


class RequestMade(ControlMessage):
    """An operator made a request that stands in the locks of some partitions."""

    kind: ClassVar[str] = "order"
    is_news: ClassVar[bool] = True
    order: str
    """``pause``, ``resume``, ``retry``, ``put``, or ``reset``, which owners need not obey."""
    partitions: tuple[int, ...]
    versions: tuple[int, ...]
    """The version of the orders in each partition's lock; none of a ``reset``."""
    who: str
    why: str
    """The operator's reason; for ``put`` it begins with the record, for ``reset`` it is the target."""

    def __str__(self) -> str:
        return f"{self.order} {ranges(self.partitions)} by {self.who}"


class StreamGrown(ControlMessage):
    """The stream of the group has other partitions; its map says which."""

    kind: ClassVar[str] = "grown"
    map: str
    """The map, such as ``8+12``; a reader asks Redis for the newest."""
    who: str

    def __str__(self) -> str:
        return f"stream grown to {self.map} by {self.who}"


def together(messages: Iterable[ControlMessage]) -> list[ControlMessage]:
    """Merge the messages of one kind, owner and generation, one for each partition, into one message."""
    alike: dict[object, ControlMessage] = {}
    for message in messages:
        key: object = message
        if isinstance(message, PartitionsMessage):
            key = (type(message), message.owner, message.generation)
            if isinstance(before := alike.get(key), PartitionsMessage):
                message = replace(message, partitions=(*before.partitions, *message.partitions))
        alike[key] = message
    return list(alike.values())
