"""What members tell each other on the control stream.

The stream is a hint and a record, never the truth: a lost message costs one heartbeat, whose
answer carries the generation. It is kept after it was read, and is what ``streamworker
history`` shows: each change, and when the partitions that it moved ran again.

A kind that this release does not know is ignored, so that a newer one can add some.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """The membership document has a new generation."""

    generation: int
    cause: str
    """``join``, ``return``, ``leave``, ``left``, ``death``, ``hold-expired``, ``rollback``,
    ``mended``, ``balance`` or ``weights``; in the protocol claim, ``claim`` or ``steal``."""
    member: str
    """Name of the member that it is about; several are separated by a space."""
    moved: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionsReleased:
    """A member released locks that others may be waiting for."""

    partitions: tuple[int, ...]
    owner: str
    generation: int


@dataclass(frozen=True, slots=True)
class PartitionsAcquired:
    """A member acquired locks and works on their partitions."""

    partitions: tuple[int, ...]
    owner: str
    generation: int


@dataclass(frozen=True, slots=True)
class LeaseChallenged:
    """The leases of some partitions are challenged: the race for them begins (protocol ``lease``)."""

    partitions: tuple[int, ...]
    owner: str
    """Who challenges."""
    generation: int
    """The server's time in ms."""


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """A node does not process some partitions any more (protocol ``lease``)."""

    partitions: tuple[int, ...]
    owner: str
    generation: int
    """The server's time in ms."""


@dataclass(frozen=True, slots=True)
class JoinWanted:
    """A worker asks the members to let it in (``core.joining``)."""

    name: str
    """The worker's."""
    applicant: str
    """All about it, as JSON."""


ControlMessage = (
    JoinWanted | GroupChanged | PartitionsReleased | PartitionsAcquired | LeaseChallenged | LeaseEnded
)


def to_fields(message: ControlMessage) -> dict[str, str]:
    """Return a message as the fields of a control stream entry."""
    match message:
        case GroupChanged(generation, cause, member, moved):
            return {
                "kind": "changed",
                "generation": str(generation),
                "cause": cause,
                "member": member,
                "moved": _join(moved),
            }
        case JoinWanted(name, applicant):
            return {"kind": "wanted", "generation": "0", "name": name, "applicant": applicant}
        case PartitionsReleased(partitions, owner, generation):
            kind = "released"
        case PartitionsAcquired(partitions, owner, generation):
            kind = "acquired"
        case LeaseChallenged(partitions, owner, generation):
            kind = "challenged"
        case LeaseEnded(partitions, owner, generation):
            kind = "ended"
    return {"kind": kind, "partitions": _join(partitions), "owner": owner, "generation": str(generation)}


def from_fields(fields: Mapping[str, str]) -> ControlMessage | None:
    """Read a control stream entry; None where its kind or its fields are not known.

    Examples
    --------
    >>> from_fields(to_fields(PartitionsReleased((3, 4), "w1.a", 7)))
    PartitionsReleased(partitions=(3, 4), owner='w1.a', generation=7)
    >>> from_fields({"kind": "of-a-later-release"}) is None
    True
    """
    try:
        generation = int(fields["generation"])
        match fields["kind"]:
            case "changed":
                return GroupChanged(generation, fields["cause"], fields["member"], _split(fields["moved"]))
            case "wanted":
                return JoinWanted(fields["name"], fields["applicant"])
            case "released":
                return PartitionsReleased(_split(fields["partitions"]), fields["owner"], generation)
            case "acquired":
                return PartitionsAcquired(_split(fields["partitions"]), fields["owner"], generation)
            case "challenged":
                return LeaseChallenged(_split(fields["partitions"]), fields["owner"], generation)
            case "ended":
                return LeaseEnded(_split(fields["partitions"]), fields["owner"], generation)
    except (KeyError, ValueError):
        pass
    return None


def _join(partitions: Iterable[int]) -> str:
    return ",".join(str(partition) for partition in partitions)


def _split(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",")) if text else ()
