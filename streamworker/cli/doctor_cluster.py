"""The part of ``doctor`` about a Redis Cluster: each primary as one server, and all together."""

from typing import TYPE_CHECKING

from streamworker.cli.checks import Check
from streamworker.cli.doctor_server import server_checks

if TYPE_CHECKING:
    from streamworker.redisio.client import Backend


async def redis_checks(backend: "Backend", app_name: str) -> list[Check]:
    """Check one server, or all primaries of a Cluster. What is alike at all of them is said once.

    Raises
    ------
    BackendError
        If one does not answer.
    """
    if not backend.is_cluster:
        return await server_checks(backend, app_name)
    primaries = await backend.primaries()
    found: dict[str, dict[str, Check]] = {}
    alone = []
    for primary in primaries:
        for check in await server_checks(primary, app_name, as_cluster=True):
            found.setdefault(check.name, {})[primary.address] = check
        if not (await primary.info()).replicas:
            alone.append(primary.address)
    checks = [_whole(await backend.uncovered(), len(primaries), alone)]
    for by_address in found.values():
        different = set(by_address.values())
        if len(different) == 1:
            checks += different
        else:
            checks += [_of_node(check, address) for address, check in by_address.items()]
    return checks


def _of_node(check: Check, address: str) -> Check:
    if address in check.found:
        return check
    return Check(check.name, check.verdict, f"{address}: {check.found}", check.remedy)


def _whole(uncovered: int, primaries: int, alone: list[str]) -> Check:
    """Say whether all slots are served, and each by a primary that can be replaced."""
    if uncovered:
        return Check(
            "cluster",
            "fail",
            f"nobody has {uncovered:,} of 16,384 slots",
            "A failover ends that by itself; CLUSTER INFO and CLUSTER NODES say more.",
        )
    served = f"{primaries} primaries serve all slots"
    if alone:
        return Check(
            "cluster",
            "warn",
            f"{served}; without a replica: {', '.join(alone)}",
            "Give each a replica: when such a primary ends, its partitions stand still until it is back.",
        )
    return Check("cluster", "ok", f"{served}, and each has a replica")
