"""Draws the smallest failing window of a history: what happened in one partition around a violation."""

from collections.abc import Sequence

from tests.chaos.checker import Violation, text_of
from tests.chaos.history import Event

MARGIN_MS = 200
LINES_MAX = 40
IDS_SHOWN = 3
WIDTH = 200
UNSHOWN = {
    "wall",
    "at_ms",
    "timestamp",
    "level",
    "logger",
    "partition",
    "processor",
    "may_lose",
    "number",
    "takes",
}
"""Fields that say nothing of a violation that is not said elsewhere."""


def draw(history: Sequence[Event], violation: Violation) -> str:
    """Return a timeline of the events between the first and the last that show a violation.

    Only what concerns its partition: locks, commits and calls there, the sends it is about, what workers
    said, and the faults that went on meanwhile. What does not fit gives way to what is evidence.
    """
    if not violation.evidence:
        return "  (seen in what is left in Redis; no event of the history shows it)"
    evidence = set(map(id, violation.evidence))
    start = min(event.at for event in violation.evidence) - MARGIN_MS
    end = max(event.at for event in violation.evidence) + MARGIN_MS
    going_on = _faults_at(history, start)
    window = [e for e in history if start <= e.at <= end and (id(e) in evidence or _concerns(e, violation))]
    kept = window
    if len(window) > LINES_MAX:
        kept = [e for e in window if id(e) in evidence or e.kind in ("lock", "fault")]
    if len(kept) > LINES_MAX:
        kept = [e for e in kept if id(e) in evidence][:LINES_MAX]
    zero = violation.evidence[0].at
    lines = [f"  before{'':8}  {name} goes on" for name in going_on]
    lines += [
        f"  {e.at - zero:+12.1f} ms {'*' if id(e) in evidence else ' '} {e.who:<12} {_words(e, violation)}"
        for e in kept
    ]
    if len(kept) < len(window):
        lines.append(f"  ({len(window) - len(kept)} events in between are left out)")
    return "\n".join(lines)


def _faults_at(history: Sequence[Event], at: float) -> list[str]:
    going_on: dict[int, str] = {}
    for event in history:
        if event.at >= at:
            break
        if event.kind == "fault":
            if event["what"] == "begin":
                going_on[event["number"]] = f"{event['name']} ({event['target']})"
            else:
                going_on.pop(event["number"], None)
    return list(going_on.values())


def _concerns(event: Event, violation: Violation) -> bool:
    if event.kind in ("fault", "run", "died"):
        return True
    if event.kind == "send":
        return False  # Those that matter are evidence.
    return violation.partition is not None and event.get("partition") == violation.partition


def _words(event: Event, violation: Violation) -> str:
    its = {name: value for name, value in event.fields.items() if name not in UNSHOWN}
    what = its.pop("what", "")
    if event.kind == "exec":
        its["ids"] = f"{len(its['ids'])} from {its['ids'][0]} to {its['ids'][-1]}"
    elif event.kind == "send":
        mine, seqs = set(map(text_of, violation.ids)), its.pop("seqs")
        places = [f"{p}:{entry_id}" for p, entry_id in its.pop("places", None) or () if entry_id in mine]
        its = {"producer": its["producer"], "records": places[:IDS_SHOWN] or f"{len(seqs)} from {seqs[0]}"}
    return f"{event.kind} {what} {' '.join(f'{name}={value}' for name, value in its.items())}"[:WIDTH]
