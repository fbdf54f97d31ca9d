"""A plain client, of a server, a Cluster or sentinels: what others may do to our keys, and see of them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import redis
from redis.cluster import ClusterNode, RedisCluster

from streamworker.core.data.entries import EntryId
from streamworker.records.entries import Entries
from streamworker.urls import each_server, kind_of, read_sentinels


class RawCluster(RedisCluster):
    """Does at each node what one server does for all keys, and puts the answers together."""

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command; one that is about servers and not about a key at every node."""
        name = str(args[0]).split()[0].upper()
        if name not in _EVERYWHERE or "target_nodes" in kwargs:
            return super().execute_command(*args, **kwargs)
        nodes = self.get_nodes() if name in _REPLICAS_TOO else self.get_primaries()
        answers = [
            super(RawCluster, self).execute_command(*args, target_nodes=node, **kwargs) for node in nodes
        ]
        return _together(answers)

    def at(self, key: str) -> redis.Redis:
        """Return a client of the node that has a key."""
        node = self.get_node_from_key(key)
        assert node is not None
        return self.client_of(node)

    def client_of(self, node: ClusterNode) -> redis.Redis:
        client: redis.Redis = self.get_redis_connection(node)
        return client


_EVERYWHERE = {"ACL", "CLIENT", "CONFIG", "FLUSHALL", "INFO", "SCRIPT"}
_REPLICAS_TOO = {"ACL", "CONFIG"}


def _together(answers: list[Any]) -> Any:
    first = answers[0]
    if isinstance(first, dict):
        return {name: value for answer in reversed(answers) for name, value in answer.items()}
    if isinstance(first, list):
        return [each for answer in answers for each in answer]
    if isinstance(first, int) and not isinstance(first, bool):
        return sum(answers)
    return first


_clusters: dict[str, RawCluster] = {}
"""Clients that stay open: to ask three nodes for what they know takes longer than most tests."""


@contextlib.contextmanager
def opened(url: str) -> Iterator[Any]:
    """Open a plain client; that of a Cluster stays open until :func:`close_clusters`."""
    kind = kind_of(url)
    if kind != "cluster":
        with _primary_of(url) if kind else redis.Redis.from_url(url, protocol=2) as client:
            yield client
        return
    if url not in _clusters:
        seeds = [redis.connection.parse_url(each) for each in each_server(url)]
        nodes = [ClusterNode(seed["host"], seed["port"]) for seed in seeds]
        password = seeds[0].get("password")
        _clusters[url] = RawCluster(startup_nodes=nodes, password=password, protocol=2)
    yield _clusters[url]


def _primary_of(url: str) -> redis.Redis:
    """Return a client of the primary that sentinels name."""
    named = read_sentinels(url)
    sentinels = redis.Sentinel([])
    with contextlib.ExitStack() as stack:
        sentinels.sentinels = [stack.enter_context(redis.Redis.from_url(one)) for one in named.urls]
        place = sentinels.discover_master(named.service)
    return redis.Redis.from_url(named.server_url(*place), protocol=2)


def close_clusters() -> None:
    """Close what stays open."""
    while _clusters:
        _clusters.popitem()[1].close()


def records_in(client: Any, key: str, after: str = "0-0") -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the records of a partition after an id, each with its id and fields, as a worker reads them."""
    found = client.xrange(key, f"({after}", "+")
    flats = [[id_, [part for pair in fields.items() for part in pair]] for id_, fields in found]
    records = Entries.of(flats)
    return [(str(each.id).encode(), dict(each.fields)) for each in records if each.id > EntryId.parse(after)]


def records_of(client: Any, key: str) -> list[dict[bytes, bytes]]:
    """Return the fields of each record of a stream, as if each were an entry of its own."""
    found = client.xrange(key)
    flat = [(name, [part for pair in fields.items() for part in pair]) for name, fields in found]
    return [dict(entry.fields) for entry in Entries.of(flat)]
