"""Faults that only a Cluster has: failovers, slots that move, and nodes that come back as something else.

A failover that nobody could prepare loses what the replica had not received: such a fault names the
partitions that it may cost something, and the checker asks that each loss was told by its ids. No two
faults have hold of one primary and its replica at a time, so that what one of them loses is known.
"""

import time
from typing import ClassVar

import redis
from redis.crc import key_slot

from tests.chaos.nemesis import Field, Nemesis
from tests.stage.nodes import ChaosCluster, ChaosNode

TAKE_OVER_S = 20.0
"""A failover that has not come about after this long is given up."""
MIGRATE_MS = 5_000
VOTE = "the vote of the primaries"
"""What only one fault has hold of that needs it: with two of three primaries gone nobody is elected."""
NOBODY_TOOK_OVER = f"nobody took over in {TAKE_OVER_S:.0f} s"


class OnCluster(Nemesis):
    """A fault of a Cluster."""

    @classmethod
    def missing(cls, field: Field) -> str:
        return "" if isinstance(field.server, ChaosCluster) else "it is no Cluster"

    @property
    def cluster(self) -> ChaosCluster:
        assert isinstance(self.field.server, ChaosCluster)
        return self.field.server


class OfPair(OnCluster):
    """A fault of a primary, or of its replica."""

    primary: ChaosNode
    replica: ChaosNode
    is_voted: ClassVar[bool] = False
    """Whether the other primaries must agree; two such faults at a time would both come to nothing."""

    def choose(self) -> tuple[str, frozenset[str]] | None:
        shards = self.cluster.free_shards(self.taken)
        return self.pair(self.rng.choice(shards)) if shards else None

    def pair(self, shard: int) -> tuple[str, frozenset[str]] | None:
        """Take hold of a primary and its replica, if each is what it should be."""
        primary, replica = self.cluster.primary(shard), self.cluster.replica(shard)
        if primary is None or replica is None:
            return None
        self.primary, self.replica = primary, replica
        names = self.field.names
        held = self.cluster.held_by(primary, [names.events(p) for p in range(names.partitions)])
        if self.loses:
            self.partitions = held
        members = self.cluster.held_by(primary, [names.members])
        what = f"the membership and partitions {held}" if members else f"partitions {held}"
        takes = {primary.holds, VOTE} if self.is_voted else {primary.holds}
        return f"{primary.name} with {what}", frozenset(takes)


class ReplicaKilled(OfPair, name="replica killed", lasts_s=(0.0, 2.0)):
    """SIGKILL of a replica, and started again."""

    def begin(self) -> None:
        self.replica.kill()

    def end(self) -> bool:
        if not self.replica.running:
            self.replica.start()
        return bool(self.replica.follows)


class ReplicaFrozen(OfPair, name="replica frozen", lasts_s=(0.5, 5.0)):
    """SIGSTOP and SIGCONT of a replica."""

    def begin(self) -> None:
        self.replica.pause()

    def end(self) -> bool:
        if self.replica.is_paused:
            self.replica.resume()
        return bool(self.replica.follows)


class FailoverPlanned(OfPair, name="failover planned", lasts_s=(0.2, 0.5)):
    """``CLUSTER FAILOVER``: a replica takes over once it has everything."""

    is_voted = True

    def begin(self) -> None:
        self._until_s = time.monotonic() + TAKE_OVER_S
        with self.replica.client() as client:
            client.execute_command("CLUSTER", "FAILOVER")

    def end(self) -> bool:
        if self.replica.is_primary and self.primary.follows:
            self.failure = ""
            return True
        # One that was not agreed upon in time leaves everything as it was.
        self.failure = self.failure or NOBODY_TOOK_OVER
        return bool(time.monotonic() > self._until_s and self.primary.is_primary and self.replica.follows)


class _Unprepared(OfPair, lasts_s=(0.0, 0.1)):
    """A replica takes over from a primary that does not answer any more; what it had not received is lost."""

    loses = True
    is_voted = True

    def begin(self) -> None:
        self._until_s = time.monotonic() + TAKE_OVER_S
        self._is_hurt = self._is_back = False
        self.replica.may_take_over(True)
        self._is_hurt = True
        self.hurt()

    def hurt(self) -> None:
        self.primary.kill()

    def bring_back(self) -> None:
        """Let it answer again, if it does not: it finds that it has a successor."""
        if not self.primary.running:
            self.primary.start()

    def end(self) -> bool:
        if not self._is_back:
            if self._is_hurt and not self.replica.is_primary and time.monotonic() < self._until_s:
                return False
            # What of it fails is done again: a replica that may take over would do so unasked.
            self.bring_back()
            self.replica.may_take_over(False)
            self._is_back = True
        if self.replica.is_primary and self.primary.follows:
            self.failure = ""
            return True
        self.failure = self.failure or NOBODY_TOOK_OVER
        return self.primary.is_primary and bool(self.replica.follows)


class PrimaryLost(_Unprepared, name="primary killed, its replica takes over"):
    """SIGKILL of a primary; its replica takes over, and it comes back as a replica."""


class MembershipPrimaryLost(PrimaryLost, name="primary of the membership killed, its replica takes over"):
    """The same of the primary that has the membership."""

    def choose(self) -> tuple[str, frozenset[str]] | None:
        found = self.cluster.server_of(self.field.names.members)
        return None if found is None else self.pair(found.shard)


class PrimaryFrozen(_Unprepared, name="primary frozen, its replica takes over"):
    """SIGSTOP of a primary until its replica has its place: it wakes, and takes itself for the primary."""

    def hurt(self) -> None:
        self.primary.pause()

    def bring_back(self) -> None:
        if self.primary.is_paused:
            self.primary.resume()


class PrimaryLostUnfollowed(
    _Unprepared, name="primary killed, its replica had not followed", lasts_s=(0.3, 1.0)
):
    """A replica that has heard nothing for a moment takes over: what was confirmed meanwhile is lost."""

    def hurt(self) -> None:
        self._is_killed = False
        self.replica.config("masterauth", "wrong")
        self.primary.call("CLIENT", "KILL", "TYPE", "replica")

    def bring_back(self) -> None:
        super().bring_back()
        self.replica.config("masterauth", self.primary.password)

    def end(self) -> bool:
        if self._is_hurt and not self._is_killed:
            self._is_killed = True
            self.primary.kill()
        return super().end()


# -- slots that move ---------------------------------------------------------------------------------


class _SlotMoves(OnCluster):
    """The slot of a partition, or now and then of the membership, is given to another primary."""

    source: ChaosNode
    target_node: ChaosNode

    def choose(self) -> tuple[str, frozenset[str]] | None:
        names = self.field.names
        number = self.rng.randrange(-2, names.partitions)
        key = names.members if number < 0 else names.events(number)
        self.slot = key_slot(key.encode())
        source = self.cluster.server_of(key)
        free = self.cluster.free_shards(self.taken)
        if source is None or source.shard not in free or len(free) < 2:
            return None
        target = self.cluster.primary(self.rng.choice([shard for shard in free if shard != source.shard]))
        if target is None or self.cluster.replica(target.shard) is None:
            return None
        self.source, self.target_node = source, target
        what = "the membership" if number < 0 else f"partition {number}"
        return f"{what} from {source.name} to {target.name}", frozenset({source.holds, target.holds})

    def _followed(self) -> bool:
        with self.target_node.client() as client:
            return int(client.execute_command("WAIT", 1, 500)) >= 1


class SlotMovesByKeys(_SlotMoves, name="slot moves key by key", lasts_s=(0.2, 2.0)):
    """Key by key, as ``redis-cli --cluster reshard`` does: some are here for a while, and some there."""

    def begin(self) -> None:
        self._is_given = False
        with self.source.client() as here, self.target_node.client() as there:
            there.execute_command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.source.id)
            here.execute_command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.target_node.id)
            self._move(here, self.rng.randint(0, 2))

    def end(self) -> bool:
        with self.source.client() as here, self.target_node.client() as there:
            if not self._is_given:
                while self._move(here, 10):
                    pass
                # The target first: should it end in between, nobody has the slot twice.
                for client in (there, here):
                    client.execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", self.target_node.id)
                self._is_given = True
        self.failure = ""
        return self._followed()

    def _move(self, here: "redis.Redis", count: int) -> int:
        names = here.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, count) if count else []
        if names:
            node = self.target_node
            words = ("MIGRATE", "127.0.0.1", node.port, "", 0, MIGRATE_MS)
            # One that had no answer may have come: it is at the source, so that is what counts.
            here.execute_command(*words, "REPLACE", "AUTH", node.password, "KEYS", *names)
        return len(names)


class SlotMovesWhole(_SlotMoves, name="slot moves whole", lasts_s=(0.1, 0.5)):
    """In one step, as Valkey 9 does: copied meanwhile, and handed over."""

    def begin(self) -> None:
        self._until_s = time.monotonic() + TAKE_OVER_S
        with self.source.client() as here:
            words = ("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", self.slot, self.slot)
            here.execute_command(*words, "NODE", self.target_node.id)

    def end(self) -> bool:
        if self.cluster.ports().get(self.slot) == self.target_node.port:
            self.failure = ""
            return self._followed()
        if time.monotonic() < self._until_s:
            return False
        self.failure = self.failure or f"the slot had not moved in {TAKE_OVER_S:.0f} s"
        with self.source.client() as here:
            here.execute_command("CLUSTER", "CANCELSLOTMIGRATIONS")
        return True


CLUSTER_KINDS: tuple[type[Nemesis], ...] = (
    ReplicaKilled,
    ReplicaFrozen,
    FailoverPlanned,
    PrimaryLost,
    MembershipPrimaryLost,
    PrimaryFrozen,
    PrimaryLostUnfollowed,
    SlotMovesByKeys,
    SlotMovesWhole,
)
"""What only a Cluster has. Beside them one server's kinds hurt one primary each: one that is killed by those
comes back with its file, since its replica may not take over."""
