"""The stage of the fault matrix is that of rebalances, too."""

from tests.chaos.conftest import together, yard

__all__ = ["together", "yard"]
