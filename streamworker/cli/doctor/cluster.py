"""The checks of ``doctor`` for a Redis Cluster: of each primary, and of the whole Cluster."""

from streamworker.cli.doctor.checks import Check
from streamworker.cli.doctor.server import server_checks
from streamworker.redisio.wire.client import Backend


async def redis_checks(backend: Backend, app_name: str) -> list[Check]:
    """Check one server, or all primaries of a Cluster; a result that all primaries share appears once.

    Raises
    ------
    BackendError
        If a server does not answer.
    """
    uncovered = await backend.uncovered()
    if uncovered is None:
        return await server_checks(backend, app_name)
    primaries = await backend.primaries()
    found: dict[str, dict[str, Check]] = {}
    alone = []
    for primary in primaries:
        for check in await server_checks(primary, app_name):
            found.setdefault(check.name, {})[primary.address] = check
        if not (await primary.info()).replicas:
            alone.append(primary.address)
    checks = [_whole(uncovered, len(primaries), alone)]
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
    """Check that all slots are served, and that each primary has a replica."""
    if uncovered:
        return Check(
            "cluster",
            "fail",
            f"no primary serves {uncovered:,} of 16,384 slots",
            "A failover puts this right by itself; CLUSTER INFO and CLUSTER NODES say more.",
        )
    served = f"{primaries} primaries serve all slots"
    if alone:
        return Check(
            "cluster",
            "warn",
            f"{served}; without a replica: {', '.join(alone)}",
            "Add a replica to each: if such a primary fails, its partitions stop until it is back.",
        )
    return Check("cluster", "ok", f"{served}, and each has a replica")
