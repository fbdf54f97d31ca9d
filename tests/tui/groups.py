"""Snapshots of groups of any size, for the tests of the live view."""

from streamworker.core.snapshot import (
    GroupSnapshot,
    MemberState,
    MemberView,
    PartitionView,
    ReaderView,
    Rebalance,
)


def group(
    *,
    partitions: int,
    workers: int,
    standbys: int = 0,
    at_ms: int = 100_000,
    committed: int = 0,
    lag: int = 0,
) -> GroupSnapshot:
    """Make a steady group in which each worker owns a contiguous share.

    Parameters
    ----------
    committed
        Entries that each partition has committed, on top of 1,000.
    lag
        Entries that wait in each partition.
    """
    owner = {p: f"w{p * workers // partitions + 1}" if workers else None for p in range(partitions)}
    members = []
    for number in range(1, workers + standbys + 1):
        name = f"w{number}"
        held = tuple(p for p in range(partitions) if owner[p] == name)
        state: MemberState = "active" if held else "standby"
        members.append(MemberView(name, name, "host", 100 + number, number, 200, state, held))
    views = tuple(
        PartitionView(
            partition=p,
            owner=owner[p],
            assigned=owner[p],
            epoch=1_763_700_000_000 + p,
            state="running" if owner[p] else "unowned",
            reason="",
            checkpoint="1763700000000-0",
            records=1_000 + committed,
            gone=0,
            lag=lag,
            length=2_000,
            rows=1_000 + committed,
            acked_length=10,
            dead=0,
            since_ms=0,
        )
        for p in range(partitions)
    )
    return GroupSnapshot(
        app="shop",
        stream="orders",
        processor="price",
        generation=1_763_700_000_007,
        taken_ms=at_ms,
        members=tuple(members),
        partitions=views,
        readers=(ReaderView("lake", dict.fromkeys(range(partitions), 900), 40, at_ms - 300),),
        rebalances=(Rebalance(1_763_700_000_007, "join", "w1", at_ms - 9_000, tuple(range(partitions)), 95),),
    )
