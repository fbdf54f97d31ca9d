"""The server of probes and metrics, on real sockets: what clients do to it changes nothing for others."""

import gzip
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress

import psutil
import pytest
from prometheus_client import Metric
from structlog.testing import capture_logs

from streamworker.cli.workers import serving
from streamworker.cli.workers.probes import metrics_page
from streamworker.cli.workers.serving import CONNECTIONS_MAX, Response, listen, reached_from, serve
from streamworker.dev.server import free_port
from streamworker.errors import ConfigurationError
from tests.helpers import PATIENCE_S, answered, exchanged, wait_for

has_ipv6 = socket.has_dualstack_ipv6()


async def fine(_headers: Mapping[str, str]) -> Response:
    return Response(200, b"ok\n")


@pytest.fixture(scope="module")
def port() -> int:
    found = free_port()
    serve(f"127.0.0.1:{found}", {"/livez": fine}, "--port")
    return found


def asked(
    port: int, target: str = "/livez", method: str = "GET", head: str = "", host: str = "127.0.0.1"
) -> tuple[int, str, bytes]:
    """Return the status, the head and the body of an answer."""
    said = f"{method} {target} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode()
    first, _, body = exchanged(port, said, host).partition(b"\r\n\r\n")
    return int(first.split()[1]), first.decode(), body


def opened(port: int, said: bytes = b"GET /livez HTTP/1.1\r\nX: ") -> socket.socket:
    """Return a connection that has sent so much."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    connection.sendall(said)
    return connection


def test_answers_are_text_of_no_version_and_have_a_length(port: int) -> None:
    status, head, body = asked(port)
    assert (status, body) == (200, b"ok\n")
    assert asked(port, method="HEAD") == (200, head, b"")
    for target, method, status in (("/other", "GET", 404), ("/other", "HEAD", 404), ("/livez", "POST", 405)):
        answer = asked(port, target, method)
        assert answer[0] == status and "Content-Type: text/plain" in answer[1]
        assert "Python" not in answer[1] and "Server" not in answer[1]
        assert bool(answer[2]) == (method != "HEAD")
    assert asked(port, "/livez?verbose=1")[0] == 200


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET /livez HTTP/1.0\r\n\r\n", 200),
        (b"GET /livez\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /livez HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 200),
        (b"PUT /livez HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000, 405),
        ("GET /livez\udcff HTTP/1.1\r\n\r\n".encode("utf-8", "surrogateescape"), 404),
    ],
)  # fmt: skip
def test_odd_requests_get_an_answer_that_arrives(port: int, said: bytes, status: int) -> None:
    """A server that closes with something unread would reset the connection, and its answer would be lost."""
    assert int(exchanged(port, said).split()[1]) == status


def test_those_who_wait_give_way_to_those_who_ask(port: int) -> None:
    """Hundreds of slow clients hold no thread and no more than some connections, and nobody is refused."""
    before = threading.active_count()
    with ExitStack() as stack:
        slow = [stack.enter_context(opened(port)) for _ in range(4 * CONNECTIONS_MAX)]
        assert all(asked(port)[0] == 200 for _ in range(CONNECTIONS_MAX))
        assert threading.active_count() == before
        here = ("127.0.0.1", port)
        held = [each for each in psutil.Process().net_connections("tcp") if each.laddr == here]
        assert len([each for each in held if each.status == "ESTABLISHED"]) <= CONNECTIONS_MAX
        for each in slow[: 2 * CONNECTIONS_MAX]:
            with suppress(ConnectionResetError):
                assert each.recv(1) == b"", "the oldest were ended"


def test_a_request_has_to_be_whole_in_time_however_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not begin the time anew. Neither may an answer be left lying for ever."""
    monkeypatch.setattr(serving, "REQUEST_TIMEOUT_S", 0.3)
    port = free_port()

    async def long(_headers: Mapping[str, str]) -> Response:
        return Response(200, b"x" * 30_000_000)

    serve(str(port), {"/livez": fine, "/long": long}, "--port")
    with opened(port) as slow, opened(port, b"GET /long HTTP/1.1\r\n\r\n") as deaf:
        ended = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not ended.is_set():
                    slow.sendall(b"z")
                    time.sleep(0.02)

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            with suppress(ConnectionResetError):
                assert slow.recv(1) == b""
        finally:
            ended.set()
            dripping.join()
        assert deaf.recv(1) == b"H"
        here = ("127.0.0.1", port)
        wait_for(
            lambda: (
                not [
                    each
                    for each in psutil.Process().net_connections("tcp")
                    if each.laddr == here and each.status == "ESTABLISHED"
                ]
            ),
            "both connections are ended",
        )


def test_clients_that_leave_say_nothing_in_the_log(
    port: int, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither before, nor in the middle of their request, nor before the answer; also by a reset."""
    politely, by_a_reset = struct.pack("ii", 0, 0), struct.pack("ii", 1, 0)
    with capture_logs() as told:
        for said in (b"", b"GET /li", b"GET /livez HTTP/1.1\r\n\r\n"):
            for linger in (politely, by_a_reset):
                for _ in range(20):
                    with opened(port, said) as leaving:
                        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        assert asked(port)[0] == 200
    assert (told, caplog.records, capfd.readouterr()) == ([], [], ("", ""))


class Slow:
    """A collector that waits until it may go on, and counts how often it was asked."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Semaphore(0), threading.Event()
        self.times = 0

    def collect(self) -> Iterator[Metric]:
        self.times += 1
        self.began.release()
        assert self.go_on.wait(PATIENCE_S)
        metric = Metric("scrapes", "Scrapes.", "gauge")
        metric.add_sample("scrapes", {}, self.times)
        yield metric


def test_those_who_ask_at_the_same_time_share_a_scrape() -> None:
    """Whatever form each wants; probes are answered meanwhile."""
    port, slow = free_port(), Slow()
    serve(str(port), {"/livez": fine, "/metrics": metrics_page(slow)}, "--port")
    open_metrics = b"Accept: application/openmetrics-text; version=1.0.0\r\n"
    with ExitStack() as stack:
        heads = [b"", b"", open_metrics, b"Accept-Encoding: gzip\r\n", b"Accept: text/plain; version=x.y\r\n"]
        waiting = [
            stack.enter_context(opened(port, b"GET /metrics HTTP/1.1\r\n%b\r\n" % head)) for head in heads
        ]
        assert slow.began.acquire(timeout=PATIENCE_S)
        assert asked(port)[0] == 200
        threads = [each.name for each in threading.enumerate()].count("streamworker-scrape")
        slow.go_on.set()
        answers = [answered(each) for each in waiting]
    assert [answer.split()[1] for answer in answers] == [b"200"] * 5
    assert (threads, slow.times) == (1, 1)
    assert b"scrapes 1.0\n" in answers[0] and answers[2].endswith(b"scrapes 1.0\n# EOF\n")
    head, _, body = answers[3].partition(b"\r\n\r\n")
    assert b"Content-Encoding: gzip" in head and b"scrapes 1.0\n" in gzip.decompress(body)
    assert b"scrapes 2.0\n" in asked(port, "/metrics")[2]


def test_a_page_that_fails_says_so_and_is_asked_again() -> None:
    class Failing:
        times = 0

        def collect(self) -> Iterator[Metric]:
            self.times += 1
            if self.times == 1:
                raise ValueError("no figures")
            return iter(())

    port = free_port()
    serve(str(port), {"/metrics": metrics_page(Failing())}, "--port")
    with capture_logs() as told:
        assert asked(port, "/metrics")[0] == 500
    assert [(each["event"], each["log_level"]) for each in told] == [("page_failed", "error")]
    assert asked(port, "/metrics")[0] == 200


@pytest.mark.skipif(not has_ipv6, reason="This machine has no IPv6.")
def test_ipv6_is_served_alone_or_with_ipv4() -> None:
    for host, reaches in (("[::1]", ["::1"]), ("[::]", ["::1", "127.0.0.1"]), ("0.0.0.0", ["127.0.0.1"])):
        port = free_port()
        serve(f"{host}:{port}", {"/livez": fine}, "--port")
        assert [asked(port, host=each)[0] for each in reaches] == [200] * len(reaches)


def test_a_machine_without_ipv6_serves_its_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listen("::", free_port(), "--port") as listening:
        assert listening.family == socket.AF_INET


def test_an_address_says_who_reaches_it() -> None:
    hosts = ("127.0.0.1", "localhost", "::1", "127.0.0.9", "0.0.0.0", "::", "10.0.0.3", "db1.example")
    only, too = "this machine only", "other machines too"
    assert [reached_from(host) for host in hosts] == [only] * 4 + [too] * 4
    with pytest.raises(ConfigurationError, match=r"--port cannot use port 80 of no\.such\.host\.invalid"):
        listen("no.such.host.invalid", 80, "--port")
