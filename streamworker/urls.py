"""URLs of Redis that name more than one server: those of a Cluster, and those of Sentinels.

``redis+cluster://user:password@host1:port1,host2:port2`` says that these are some nodes of a Cluster:
any of them tells where the others are. With ``rediss+`` each is spoken to by TLS. Here such a URL is
taken apart into one ordinary URL for each server, which whoever reads URLs already knows how to read,
check and refuse; nothing else takes one apart.
"""

import re

CLUSTER, SENTINEL = "cluster", "sentinel"

_END_OF_HOSTS = re.compile(r"[/?#]")


def kind_of(url: str) -> str:
    """Return what stands behind the plus of a URL's scheme; nothing for a URL of one server.

    Examples
    --------
    >>> kind_of("rediss+cluster://db1.example:7000,db2.example:7000"), kind_of("redis://localhost")
    ('cluster', '')
    """
    scheme, colon, _ = url.partition("://")
    return scheme.partition("+")[2].lower() if colon else ""


def each_server(url: str) -> list[str]:
    """Return a URL for each server that a URL names; that of one server as it is.

    Nothing is checked here: whoever reads the parts says what is wrong with them.

    Examples
    --------
    >>> each_server("redis+cluster://:secret@db1:7000,db2:7001/0")
    ['redis://:secret@db1:7000/0', 'redis://:secret@db2:7001/0']
    >>> each_server("unix:///run/redis.sock")
    ['unix:///run/redis.sock']
    """
    if not kind_of(url):
        return [url]
    scheme, _, rest = url.partition("://")
    end = _END_OF_HOSTS.search(rest)
    place, tail = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    user, at, hosts = place.rpartition("@")
    return [f"{scheme.partition('+')[0]}://{user}{at}{host}{tail}" for host in hosts.split(",")]
