"""Every command names keys of one slot only: checked by proxies that read what is sent, and by ``MONITOR``.

Clients send each command through a proxy, which takes it apart. What their scripts do at the server no proxy
sees: that is what the primaries themselves tell.
"""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.forked import ROOT, Forge
from tests.chaos.slots import OneSlot, slots_of
from tests.chaos.team import APP, Team
from tests.conftest import SpawnWorker
from tests.stage.cluster import Cluster, Node

pytestmark = pytest.mark.timeout(120)

_LINE = re.compile(rb"\+[\d.]+ \[(\S+) ([^\]]+)\] (.*)\r\n")
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')


class Listener:
    """Writes down what one node is asked, by ``MONITOR``."""

    def __init__(self, node: Node) -> None:
        self.commands: list[tuple[bool, list[str]]] = []
        """Whether a script sent it, and its words."""
        self._connection = socket.create_connection(("127.0.0.1", node.port))
        self._connection.sendall(f"AUTH {node.password}\r\nMONITOR\r\n".encode())
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        with self._connection.makefile("rb") as lines:
            for line in lines:
                if found := _LINE.match(line):
                    words = [word.decode("utf-8", "replace") for word in _WORD.findall(found[3])]
                    self.commands.append((found[2] == b"lua", words))

    def stop(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()


@contextmanager
def listening(cluster: Cluster) -> Iterator[list[tuple[bool, list[str]]]]:
    """Listen to all primaries; what they were asked is there at the end."""
    heard: list[tuple[bool, list[str]]] = []
    listeners = [Listener(node) for node in cluster.nodes if node.is_primary]
    try:
        yield heard
    finally:
        for listener in listeners:
            listener.stop()
            heard += listener.commands


@pytest.mark.full("runs each command")
@pytest.mark.anyio
async def test_every_command_has_its_keys_in_one_slot(
    nodes: Cluster, crew: Forge, spawn: SpawnWorker, tmp_path: Path
) -> None:
    """Sending, processing, forwarding, sharing, and the commands that look and repair.

    Looking, which is done all the time here, does not go through the proxies.
    """
    watch = OneSlot()
    with listening(nodes) as heard, nodes.through_proxies(watch) as lines:
        near = partial(Team, nodes.url, crew, tmp_path, name="ledger", partitions=8)
        async with near(worker_url=lines.url, producer_url=lines.url) as team:
            await team.hired("w1")
            await team.hired("w2")
            async with team.load(per_second=400):
                await team.until("records flow", lambda: len(team.sends.confirmed) >= 300)
            await team.finished()
            for words in (["status", "--json"], ["doctor"], ["repair", "--dry-run"]):
                command = spawn(words[0], APP, *words[1:], cwd=ROOT, environ=dict(team.environ))
                assert await asyncio.to_thread(command.wait) == 0, command.log()
                if words[0] == "status":
                    assert len(json.loads(command.log())[0]["partitions"]) == 8
                if words[0] == "doctor":
                    assert "3 primaries serve all slots, and each has a replica" in command.log()
            for leaving in [team.ask_to_leave(name) for name in ("w1", "w2")]:
                assert await team.ended(leaving) == 0
    assert watch.crossing == [] and watch.refused == 0
    assert {"EVALSHA", "XREAD", "HGETALL", "GET"} <= set(watch.commands)
    assert sum(watch.commands.values()) > 1_000
    assert len(watch.slots) >= 10  # Those of 8 partitions, of the stream and of the group.
    slots = [slots_of([word.encode() for word in words]) for _, words in heard]
    crossing = {" ".join(words[:3]) for (_, words), found in zip(heard, slots, strict=True) if len(found) > 1}
    assert crossing == set()
    names = {words[0].lower() for is_script, words in heard if not is_script}
    assert {"evalsha", "xread", "hgetall", "get", "cluster", "client"} <= names
    assert sum(map(len, slots)) > 1_000
    for node in nodes.nodes:
        with node.client() as client:
            assert "errorstat_CROSSSLOT" not in client.info("errorstats")


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (b"*3\r\n$3\r\nDEL\r\n$17\r\nsw:{a.b.1}:events\r\n$17\r\nsw:{a.b.2}:events\r\n", ["DEL sw:{a.b.1}"]),
        (b"*3\r\n$3\r\nDEL\r\n$17\r\nsw:{a.b.1}:events\r\n$15\r\nsw:{a.b.1}:lock\r\n", []),
        (b"PING\r\n", ["no command"]),
    ],
    ids=["two slots", "one slot", "no command"],
)
def test_a_command_that_crosses_slots_would_be_found(sent: bytes, found: list[str]) -> None:
    """In whatever pieces it comes, and behind another one."""
    watch = OneSlot()
    requests = watch.requests()
    sent = b"*1\r\n$4\r\nPING\r\n" + sent
    for place in range(len(sent)):
        requests.feed(sent[place : place + 1])
    assert [text[: len(start)] for text, start in zip(watch.crossing, found, strict=True)] == found
