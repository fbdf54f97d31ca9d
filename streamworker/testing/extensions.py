"""What the model of Redis needs to know of protocols that bring operations of their own: a line each."""

from collections.abc import Callable, Mapping
from typing import Any

from streamworker.core import events as ev
from streamworker.core.claim_events import (
    ClaimPartitions,
    GiveUpPartitions,
    ListOwnership,
    StoreFailed,
    UpdateCheckpoints,
)
from streamworker.core.lease_events import (
    ChallengeLeases,
    LeaseRaced,
    LeasesChallenged,
    LeasesUpdated,
    RaceForLease,
    UpdateLeases,
)
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

UNANSWERED: Mapping[type[ev.Effect], Callable[[Any], ev.Event]] = {
    ev.ReadDocument: lambda _: ev.CallFailed(ev.Call.DOCUMENT),
    ev.ChangeDocument: lambda _: ev.CallFailed(ev.Call.DOCUMENT),
    ev.MendDocument: lambda _: ev.CallFailed(ev.Call.DOCUMENT),
    ev.ProbePeers: lambda _: ev.CallFailed(ev.Call.PROBE),
    ev.ReadLoads: lambda _: ev.CallFailed(ev.Call.LOADS),
    ev.AcquireLocks: lambda effect: ev.LocksAnswered(effect.owner, effect.partitions, {}),
    ev.ReleaseLocks: lambda effect: ev.LocksReleased(effect.owner, tuple(effect.epochs), frozenset()),
    ListOwnership: lambda _: StoreFailed(),
    ClaimPartitions: lambda _: StoreFailed(),
    UpdateCheckpoints: lambda _: StoreFailed(),
    GiveUpPartitions: lambda _: StoreFailed(),
    ChallengeLeases: lambda effect: LeasesChallenged(tuple(effect.challenges), None),
    RaceForLease: lambda effect: LeaseRaced(effect.partition, None),
    UpdateLeases: lambda _: LeasesUpdated(done=False),
}
"""Effect to the event that stands for "no answer"."""
