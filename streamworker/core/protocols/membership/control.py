"""The control message that only the membership protocol has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from streamworker.core.control import ControlMessage


@dataclass(frozen=True, slots=True)
class JoinWanted(ControlMessage):
    """A worker asks the members to add it to the group (``joining``)."""

    kind: ClassVar[str] = "wanted"
    name: str
    """The worker's name."""
    applicant: str
    """The worker's ``Applicant``, as JSON."""

    def fields(self) -> dict[str, str]:
        """Return the message as the fields of a control stream entry."""
        return {"kind": self.kind, "generation": "0", "name": self.name, "applicant": self.applicant}

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> Self:
        """Return the message that has these fields."""
        return cls(fields["name"], fields["applicant"])

    def __str__(self) -> str:
        return f"{self.name} wants to join"
