"""A bench that compares programs, some of which may not be installed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from benchmarks.measuring.programs import Bench, Program


@dataclass(frozen=True, slots=True)
class Peer(Program):
    """A program of another library."""

    needs: str = ""
    """Module that the program needs."""


@dataclass(slots=True)
class Contest(Bench):
    """The settings of a scene, and what it leaves out."""

    left_out: list[str] = field(default_factory=list)
    """The reason for each peer or scene that is not in the table."""

    def has(self, module: str, what: str) -> bool:
        """Return whether a module is installed; if not, note what is left out without it."""
        if find_spec(module) is not None:
            return True
        self.left_out.append(f"{what}: {module} is not installed. Run: pip install -e '.[all,bench]'")
        return False

    def installed(self, peers: Sequence[Peer]) -> list[Peer]:
        """Return the peers that can run here; note the others in ``left_out``."""
        return [each for each in peers if self.has(each.needs, each.name)]
