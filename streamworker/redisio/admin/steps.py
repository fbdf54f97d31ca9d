"""The steps of ``streamworker repair``, and how each is done; ``cli.doctor.repair_plan`` chooses them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from streamworker.core.words import counted
from streamworker.redisio.admin import repair as changes
from streamworker.redisio.admin.outboxes import Diverged, accept_target
from streamworker.redisio.admin.repair import Facts
from streamworker.redisio.wire.client import Backend

CHANGED = "left alone: it has changed since"
"""How the outcome of a step begins whose keys have changed since it was planned."""

Action = Literal[
    "remove members",
    "release locks",
    "repair log",
    "forget reader",
    "trim log",
    "drop damaged",
    "accept target",
    "forget group",
]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a repair, and the reason for it."""

    action: Action
    facts: Facts = field(repr=False)
    """The facts of the plan; the step is done only if they have not changed."""
    what: str
    """What the step changes, for people."""
    why: str
    names: tuple[str, ...] = ()
    """The members or the reader that the step removes."""
    partitions: tuple[int, ...] = ()
    diverged: Diverged | None = None
    """The target that goes on."""


async def do_step(backend: Backend, step: Step, by: str) -> str:
    """Do a step, which the group's history names with who did it; return what came of it, in words."""
    facts, keys = step.facts, step.facts.keys

    async def noted(what: str, partitions: Sequence[int] = ()) -> str:
        refusal = await changes.note(backend, keys, what, partitions, by=by)
        return f"; the history does not have it: {refusal}" if refusal else ""

    match step.action:
        case "remove members":
            return "done" if await changes.remove_members(backend, facts, step.names) else CHANGED
        case "forget reader":
            if not await changes.forget_reader(backend, facts, step.names[0]):
                return CHANGED
            return f"done{await noted(f'{step.action} {step.what}')}"
        case "release locks":
            released = [
                p for p in step.partitions if await changes.release_lock(backend, keys, p, facts.locks[p])
            ]
            end = await noted(step.action, released) if released else ""
            return f"{_done(len(released), len(step.partitions))}{end}"
        case "repair log":
            (p,) = step.partitions
            is_done = await changes.repair_log(backend, keys, p, facts.locks[p])
            return f"done{await noted(step.action, [p])}" if is_done else CHANGED
        case "trim log":
            dropped = {p: await changes.trim_log(backend, keys, p, facts.locks[p]) for p in step.partitions}
            trimmed = [p for p, count in dropped.items() if count is not None]
            total = sum(count or 0 for count in dropped.values())
            entries = counted(total, "entry", "entries")
            end = await noted(f"{step.action}: {entries}", trimmed) if total else ""
            return f"{_done(len(trimmed), len(step.partitions))}; {entries} dropped{end}"
        case "accept target":
            assert step.diverged is not None
            if not await accept_target(backend, keys, step.diverged):
                return CHANGED
            return f"done{await noted(f'{step.action} {step.what}', step.partitions)}"
        case "drop damaged":
            return "done" if await changes.drop_damaged(backend, facts) else CHANGED
        case "forget group":
            gone = [p for p in step.partitions if await changes.forget_partition(backend, facts, p)]
            if len(gone) == len(step.partitions) and await changes.forget_group(backend, facts):
                return "done"
            return f"{CHANGED}: {len(gone)} of {len(step.partitions)} partitions are removed"


def _done(done: int, total: int) -> str:
    return "done" if done == total else f"{CHANGED}: {total - done} of {total} partitions"
