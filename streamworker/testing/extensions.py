"""What the model of Redis needs to know of protocols that bring operations of their own: a line each."""

from collections.abc import Callable, Mapping

from streamworker.testing.model import Extension, RedisModel
from streamworker.testing.model_claim import ModelClaims
from streamworker.testing.model_lease import ModelLeases

EXTENSIONS: Mapping[str, Callable[[RedisModel], Extension]] = {
    "claim": lambda model: ModelClaims(
        lambda: len(model.locks), lambda partition: f"{model.locks[partition].checkpoint}-0"
    ),
    "lease": lambda model: ModelLeases(model.post),
}
"""Protocol to the model of its operations; one that is not here has none of its own."""
