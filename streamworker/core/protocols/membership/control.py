"""The control message that only the membership protocol has."""

from typing import ClassVar

from streamworker.core.control import ControlMessage


class JoinWanted(ControlMessage):
    """A worker asks the members to add it to the group (``joining``)."""

    kind: ClassVar[str] = "wanted"
    name: str
    """The worker's name."""
    applicant: str
    """The worker's ``Applicant``, as JSON."""

    generation: int = 0
    """No generation announces it, and each entry of the stream names one."""

    def __str__(self) -> str:
        return f"{self.name} wants to join"
