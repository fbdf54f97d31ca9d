"""URLs of Redis that name more than one server: those of a Cluster, and those of sentinels.

``redis+cluster://user:password@host1:port1,host2:port2`` names some nodes of a Cluster; any of them knows
the others. With ``rediss+`` all connections use TLS. This module splits such a URL into one ordinary URL for
each server, which the readers of ordinary URLs can parse, check and refuse. No other module splits URLs.

``redis+sentinel://user:password@host1:26379,host2:26379/0?service=orders`` names sentinels, which know the
primary of that service. User and password are those of Redis. If the sentinels require a login, too, it is
in ``sentinel_username=`` and ``sentinel_password=``. Other libraries write the service as the path,
``/orders/0``; this form is accepted, too.
"""

import ipaddress
import re
import warnings
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit

from streamworker.errors import ConfigurationError

CLUSTER, SENTINEL = "cluster", "sentinel"


class Credentials(Protocol):
    """What gives user and password in place of a URL: a ``redis.credentials.CredentialProvider`` is one."""

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the password, or user and password."""
        ...


PLAINTEXT_VARIABLE = "STREAMWORKER_ALLOW_PLAINTEXT"

_UNVERIFIED = {"ssl_cert_reqs": ("none",), "ssl_check_hostname": ("0", "f", "false", "n", "no")}
_DATABASE = re.compile(r"/?|/[0-9]{1,9}/?")
_END_OF_HOSTS = re.compile(r"[/?#]")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@\s]+)(?::([0-9]{1,5}))?")

SENTINEL_PORT = 26379
_SENTINEL_REMEDY = (
    "It is redis+sentinel://user:password@host:26379,host:26379/0?service=NAME; rediss+sentinel:// for TLS; "
    "characters such as / # @ in a password are percent-encoded."
)


def without_login(url: str) -> str:
    """Return a URL without its user and password.

    >>> without_login("redis://shop:secret@db1.example:6379/0"), without_login("unix:///run/redis.sock")
    ('redis://db1.example:6379/0', 'unix:///run/redis.sock')
    """
    return re.sub(r"^([a-z+]+://)[^/?#@]*@", r"\1", url)


def kind_of(url: str) -> str:
    """Return the text after the plus in a URL's scheme; empty for a URL of one server.

    >>> kind_of("rediss+cluster://db1.example:7000,db2.example:7000"), kind_of("redis://localhost")
    ('cluster', '')
    """
    scheme, colon, _ = url.partition("://")
    return scheme.partition("+")[2].lower() if colon else ""


def each_server(url: str) -> list[str]:
    """Return a URL for each server that a URL names; a URL of one server is returned unchanged.

    This function checks nothing: the readers of the returned URLs report what is wrong with them.

    >>> each_server("redis+cluster://:secret@db1:7000,db2:7001/0")
    ['redis://:secret@db1:7000/0', 'redis://:secret@db2:7001/0']
    >>> each_server("unix:///run/redis.sock")
    ['unix:///run/redis.sock']
    """
    if not kind_of(url):
        return [url]
    scheme, login, hosts, tail = _taken_apart(url)
    return [f"{scheme}://{login}{host}{tail}" for host in hosts]


def _taken_apart(url: str) -> tuple[str, str, list[str], str]:
    """Return the scheme up to its plus, the user and password, the hosts, and the rest."""
    scheme, _, rest = url.partition("://")
    end = _END_OF_HOSTS.search(rest)
    before, tail = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    user, at, hosts = before.rpartition("@")
    return scheme.partition("+")[0].lower(), user + at, hosts.split(","), tail


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The parts of a URL that names sentinels.

    >>> found = read_sentinels("rediss+sentinel://ann:secret@s1,s2:26380/2?service=orders&sentinel_password=x")
    >>> found.hosts, found.service
    ((('s1', 26379), ('s2', 26380)), 'orders')
    >>> found.server_url("db1.example", 6379)
    'rediss://ann:secret@db1.example:6379/2'
    >>> found.urls[0]
    'rediss://:x@s1:26379/0'
    """

    hosts: tuple[tuple[str, int], ...]
    service: str
    """The name by which the sentinels know the primary."""
    scheme: str
    """``redis`` or ``rediss``, for the sentinels and for the servers."""
    login: str = field(repr=False)
    """User and password for the servers, as the URL has them before a host."""
    sentinel_login: str = field(repr=False)
    db: int
    options: tuple[tuple[str, str], ...] = field(repr=False)
    """Other options of the URL, for each connection."""

    def server_url(self, host: str, port: int) -> str:
        """Return the URL of one Redis server."""
        return self._url(self.login, host, port, self.db)

    @property
    def urls(self) -> list[str]:
        """A URL for each sentinel."""
        return [self._url(self.sentinel_login, host, port, 0) for host, port in self.hosts]

    @property
    def addresses(self) -> str:
        """Host and port of each sentinel, for messages."""
        return ", ".join(host_and_port(host, port) for host, port in self.hosts)

    def _url(self, login: str, host: str, port: int, db: int) -> str:
        query = f"?{urlencode(self.options)}" if self.options else ""
        return f"{self.scheme}://{login}{host_and_port(host, port)}/{db}{query}"


def host_and_port(host: str, port: int) -> str:
    """Return host and port in the form of URLs and messages.

    >>> host_and_port("db1.example", 6379), host_and_port("::1", 6379)
    ('db1.example:6379', '[::1]:6379')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_sentinels(url: str) -> Sentinels:
    """Parse a URL that names sentinels; raise ConfigurationError if it is invalid or names no service.

    The message contains no part of the URL, since any part may belong to a password that was not encoded.
    """
    scheme, login, texts, tail = _taken_apart(url)
    path, _, query = tail.partition("?")
    try:
        hosts = tuple(_host_port(text) for text in texts)
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
        parts = [unquote(part) for part in path.split("/") if part]
        service = given.pop("service", "")
        if parts and not service and not parts[0].isdecimal():
            service = parts.pop(0)
        db = int(given.pop("db", "") or (parts.pop(0) if parts else "0"))
        if parts or "#" in path or scheme not in ("redis", "rediss"):
            raise ValueError
    except ValueError:
        raise ConfigurationError("The URL of Redis cannot be read.", remedy=_SENTINEL_REMEDY) from None
    if not service:
        raise ConfigurationError(
            "The URL of Redis names sentinels, and not the primary that they are to find.",
            remedy="Add ?service=NAME: the name that follows `sentinel monitor` in their configuration.",
        )
    sentinel_login = _login(given.pop("sentinel_username", ""), given.pop("sentinel_password", ""))
    login = _login(given.pop("username", ""), given.pop("password", "")) or login
    return Sentinels(hosts, service, scheme, login, sentinel_login, db, tuple(given.items()))


def _login(user: str, password: str) -> str:
    return f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""


def _host_port(text: str) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(text)
    port = int(found[2] or SENTINEL_PORT) if found else 0
    if found is None or not 0 < port < 65_536:
        raise ValueError
    return unquote(found[1].strip("[]")), port


def plaintext_host(url: str) -> str | None:
    """Return the other machine to which a URL of Redis would send plain text, or None.

    >>> plaintext_host("redis://db.example:6379/0")
    'db.example'
    >>> plaintext_host("rediss://db.example"), plaintext_host("redis://localhost")
    (None, None)
    >>> plaintext_host("redis+cluster://localhost:7000,db.example:7000")
    'db.example'
    """
    return next((host for each in each_server(url) if (host := _plaintext_host(each))), None)


def _plaintext_host(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        if parts.scheme != "redis" or parts.port == 0:  # Reading port raises if it is not a number.
            return None
        # redis-py reads the host in the same way.
        host = unquote(parts.hostname or "") or parse_qs(parts.query).get("host", ["localhost"])[0]
    except ValueError:
        return None  # The URL is invalid; the code that opens it reports that.
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return None
    try:
        return None if ipaddress.ip_address(name).is_loopback else host
    except ValueError:
        return host


def refuse_plaintext(url: str, what: str) -> None:
    """Refuse a URL of Redis that would send plain text to another machine; the error names the host."""
    host = plaintext_host(url)
    if host is None:
        return
    # If an @ follows, the host is a part of a user or password with characters that were not encoded.
    where = "another machine" if "@" in url.rpartition(host)[2] else host
    raise ConfigurationError(
        f"{what} is redis://, and would send passwords and records as plain text to {where}.",
        remedy="Use rediss://, which is TLS. Where the network itself is trusted or encrypted, say so: "
        f"allow_plaintext=True or {PLAINTEXT_VARIABLE}=1.",
    )


def check_url(url: str, what: str, *, allow_plaintext: bool) -> None:
    """Refuse a URL of Redis that would send plain text elsewhere, or whose path is no number of a database.

    With such a path redis-py would take database 0. A URL with which it does not verify the server's
    certificate is warned of.
    """
    if not allow_plaintext:
        refuse_plaintext(url, what)
    path = _taken_apart(url)[3].partition("?")[0]
    if kind_of(url) != SENTINEL and not url.startswith("unix:") and not _DATABASE.fullmatch(path):
        raise ConfigurationError(
            f"{what} cannot be read: its path is no number of a database.",
            remedy="Write redis://host:6379/0; characters such as / # @ in a password are percent-encoded.",
        )
    for option, value in parse_qsl(url.partition("?")[2]):
        if value.lower() in _UNVERIFIED.get(option, ()):
            said = f"{what} has {option}={value}: whoever is on the way can pass for the server."
            said += " To trust an authority of your own, name it instead: ssl_ca_certs=/path/ca.pem."
            warnings.warn(said, RuntimeWarning, stacklevel=2)
