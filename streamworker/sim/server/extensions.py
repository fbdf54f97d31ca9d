"""The model's operations for each protocol that has its own."""

from collections.abc import Callable, Mapping

from streamworker.sim.server.claim import ModelClaims
from streamworker.sim.server.lease import ModelLeases
from streamworker.sim.server.model import Extension, RedisModel

EXTENSIONS: Mapping[str, Callable[[RedisModel], Extension]] = {
    "claim": lambda model: ModelClaims(
        lambda: len(model.locks) if model.stored.is_declared else 0,
        lambda partition: f"{model.locks[partition].checkpoint}-0",
    ),
    "lease": lambda model: ModelLeases(model.post),
}
"""From protocol to the constructor of its operations; other protocols have no operations of their own."""
