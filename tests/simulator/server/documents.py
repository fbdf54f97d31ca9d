"""The model of what members of a group share: the document, heartbeats, loads and the control stream."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from streamworker.core import events as ev
from streamworker.core.control import ControlMessage
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.membership.mending import fingerprint
from streamworker.errors import CoordinationError
from tests.simulator.server.stored import Lock, Stored

LOOKS = 3
"""How many of the members' heartbeats in one interval return the document's fingerprint, on average."""
KEPT_BYTES = 65_536
"""How much of a damaged document is kept."""
CONTROL_KEPT = 500
"""Messages that the control stream keeps. Readers are rarely this far behind, and a lost message is only a
lost hint."""
_GENERATION = re.compile(rb'\{"generation":(\d+)')


class Documents:
    """The part of the model that is about members; it calls ``on_post`` after each control message."""

    def __init__(self, partitions: int, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.on_post: Callable[[], None] = lambda: None
        self._serial = 0
        self.stored = Stored([Lock() for _ in range(partitions)])
        self.history: list[Membership] = []
        """Every document that was written."""
        self.connections: set[int] = set()
        self.run = 1
        """The number of the server's run; each restart begins another run."""
        self.tells_connections = True
        self.calls = 0
        """Number of calls about documents and locks; a group at rest makes none."""

    @property
    def beats(self) -> dict[str, calls.Beat]:
        """The last heartbeat of each member."""
        return self.stored.beats

    @property
    def control(self) -> list[ControlMessage]:
        """The control stream, oldest first."""
        return [message for _, message in self.stored.control]

    @property
    def membership(self) -> Membership | None:
        """The current document; None if there is none or it cannot be parsed."""
        try:
            return None if self.stored.document is None else Membership.parse(self.stored.document)
        except CoordinationError:
            return None

    def read(self) -> ev.Event:
        """``GET members``."""
        self.calls += 1
        return calls.DocumentRead(self.stored.document, self._clock(), self.stored.foreign)

    def change(self, effect: calls.ChangeDocument) -> ev.Event:
        """``change_members.lua``."""
        self.calls += 1
        if self.stored.foreign:
            return ev.Unanswered(effect)
        current = self._generation()
        if current != effect.expected or (self.stored.document is not None and not current):
            return calls.ChangeRefused(self.stored.document, self._clock())
        if not self._has_beats():
            return ev.Unanswered(effect)
        generation = max(current + 1, self._clock(), effect.at_least)
        self._write(effect.membership, generation)
        if not current:
            self.beats.clear()
            self.stored.loads.clear()
        for member in effect.removed:
            self.beats.pop(member, None)
            self.stored.loads.pop(member, None)
        for member in effect.added:
            self.beats[member] = calls.Beat(self._clock(), 0, "", 0)
        self.post(replace(effect.message, generation=generation))
        return calls.DocumentChanged(generation)

    def mend(self, effect: calls.MendDocument) -> ev.Event:
        """``mend_members.lua``."""
        self.calls += 1
        if not effect.seen or effect.seen != self._fingerprint():
            return calls.ChangeRefused(self.stored.document, self._clock(), self.stored.foreign)
        self.stored.damaged = self.stored.foreign or (self.stored.document or b"")[:KEPT_BYTES]
        self.stored.document, self.stored.foreign, self.stored.no_beats = None, "", False
        generation, present = 0, effect.membership.present_ids
        if effect.membership.generation:
            generation = max(self._clock(), effect.at_least)
            self._write(effect.membership, generation)
        self.post(replace(effect.message, generation=generation))
        for member in [each for each in self.beats if each not in present]:
            del self.beats[member]
            self.stored.loads.pop(member, None)
        for member in present:
            self.beats.setdefault(member, calls.Beat(self._clock(), 0, "", 0))
        return calls.DocumentChanged(generation) if generation else calls.DocumentRead(None, self._clock())

    def _fingerprint(self) -> str:
        document = self.stored.document
        return self.stored.foreign if document is None else fingerprint(document)

    def _write(self, membership: Membership, generation: int) -> None:
        self.stored.document = replace(membership, generation=generation).document()
        self.history.append(Membership.parse(self.stored.document))

    def damage(self, document: bytes | None) -> None:
        """Overwrite the document's key as another program might: with a string, or a list if None."""
        self.stored.document, self.stored.foreign = document, "list" if document is None else ""

    def damage_beats(self) -> None:
        """Replace the heartbeats by a list, as another program might."""
        self.stored.beats, self.stored.no_beats = {}, True

    def damage_loads(self, *, is_right: bool = False) -> None:
        """Replace the loads by a list, as another program might; with ``is_right`` delete that list."""
        self.stored.loads, self.stored.no_loads = {}, not is_right

    def _has_beats(self) -> bool:
        """``beats.lua``: return whether the heartbeats' key is usable, after a repair if possible."""
        present = self.stored.present() if self.stored.no_beats else []
        if present is None:
            return False
        if self.stored.no_beats:
            if self.stored.damaged is None:
                self.stored.damaged = "list"
            self.stored.no_beats = False
            self.stored.beats = {member: calls.Beat(self._clock(), 0, "", 0) for member in present}
        return True

    def post(self, message: ControlMessage) -> None:
        """``XADD control``."""
        self._serial += 1
        self.stored.control.append((self._serial, message))
        del self.stored.control[:-CONTROL_KEPT]
        self.on_post()

    def control_after(self, serial: int) -> tuple[int, tuple[ControlMessage, ...]]:
        """``XREAD control``: return the messages after a serial, and the last one's, from which to go on."""
        fresh: list[ControlMessage] = []
        for at, message in reversed(self.stored.control):
            if at <= serial:
                break
            fresh.append(message)
        return self.stored.control[-1][0] if fresh else serial, tuple(reversed(fresh))

    def heartbeat(
        self,
        member: str,
        connection: int,
        sent_ms: int,
        load: int = 0,
        loads: Mapping[int, int] | None = None,
    ) -> calls.HeartbeatDone:
        """``heartbeat.lua``."""
        generation, run_id = self._generation(), self.run_id
        if not self._has_beats():
            seen = self._fingerprint()
            return calls.HeartbeatDone(member, False, generation, sent_ms, run_id, {}, seen)
        lost = member not in self.beats
        if not lost:
            self.beats[member] = calls.Beat(self._clock(), connection, run_id, load)
            if loads is not None and not self.stored.no_loads:
                self.stored.loads[member] = dict(loads)
        beats = {} if lost else dict(self.beats)
        digest = hashlib.sha1(f"{member}{self._clock()}".encode(), usedforsecurity=False).hexdigest()
        seen = self._fingerprint() if not lost and int(digest[:7], 16) % len(beats) < LOOKS else ""
        return calls.HeartbeatDone(member, lost, generation, sent_ms, run_id, beats, seen)

    @property
    def run_id(self) -> str:
        """The server's run id."""
        return f"run-{self.run}"

    def read_loads(self) -> ev.Event:
        """``HGETALL loads``."""
        return calls.LoadsRead(dict(self.stored.loads), self._clock())

    def probe(self, connections: Sequence[int]) -> ev.Event:
        """``CLIENT LIST ID``."""
        alive = frozenset(connections) & self.connections
        return calls.PeersProbed(alive if self.tells_connections or not connections else None)

    def _generation(self) -> int:
        found = _GENERATION.match((self.stored.document or b"")[:64])
        return 0 if found is None else int(found[1])
