"""A stream of the model: its map, its partitions, and where keys go."""

from functools import cache

from streamworker.core.data.placement import Placement
from tests.model.net import Net
from tests.model.scripts import Meta, Partition

KEYS = (b"k0", b"k1", b"k2", b"k5", b"k11")
PLANNED_EVERY = 15
"""The timer of a group is planned for each multiple of this time."""


class Router(Placement):
    """The product's placement, with what it says of the few keys that there are."""

    def __init__(self, *counts: int) -> None:
        super().__init__(*counts)
        self.paths = {key: self.path_of(key) for key in KEYS}
        self.parents = tuple(map(self.parents_of, self.all))
        self.ancestors = tuple(map(self.ancestors_of, self.all))
        self.keys = tuple([key for key in KEYS if p in self.paths[key]] for p in self.all)

    def goes(self, key: bytes) -> int:
        return self.paths[key][-1]


@cache
def router(counts: tuple[int, ...]) -> Router:
    return Router(*counts)


class Stream:
    """One stream, and the servers that have it."""

    def __init__(self, net: Net, name: str, shape: tuple[int, ...]) -> None:
        self.net, self.name, self.shape = net, name, shape
        self.meta = Meta(net, shape[:1])
        self.partitions: list[Partition] = []
        self.clock = 0
        self.told: list[str] = []
        """What was told to be lost."""
        self[shape[0] - 1]

    def __getitem__(self, number: int) -> Partition:
        while len(self.partitions) <= number:
            its = Partition(self.net, self.name, len(self.partitions))
            its.clock = self.clock
            self.partitions.append(its)
        return self.partitions[number]

    @property
    def map(self) -> tuple[int, ...]:
        counts: tuple[int, ...] = self.meta.data["partitions"]
        return counts

    @property
    def growing(self) -> tuple[int, ...]:
        counts: tuple[int, ...] = self.meta.data["growing"]
        return counts

    @property
    def is_changing(self) -> bool:
        return bool(self.growing) and self.growing != self.map

    @property
    def longest(self) -> Router:
        """The longest map that anybody may have seen."""
        return router(max((self.map, self.growing), key=len))

    def cut(self, opened: int) -> int:
        """Return the last planned time up to which old partitions call their timer."""
        return opened // PLANNED_EVERY
