"""The model's operations for each protocol that has its own."""

from collections.abc import Callable, Mapping

from tests.simulator.server.claim import ModelClaims
from tests.simulator.server.lease import ModelLeases
from tests.simulator.server.model import Extension

EXTENSIONS: Mapping[str, Callable[[], Extension]] = {"claim": ModelClaims, "lease": ModelLeases}
"""From protocol to the constructor of its operations; other protocols have no operations of their own."""
