"""Puts partitions, owners and values into words, for all that is written about a core's steps."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TypeVar, dataclass_transform

from streamworker.core.data.entries import SEQUENCE_MAX

T = TypeVar("T")


def ranges(numbers: Iterable[int]) -> str:
    """Write partitions as ranges.

    >>> ranges((0, 1, 2, 5))
    '0-2,5'
    """
    ordered = sorted(numbers)
    if not ordered:
        return "nothing"
    parts, start = [], ordered[0]
    for here, following in pairwise([*ordered, ordered[-1] + 2]):
        if following != here + 1:
            parts.append(str(here) if here == start else f"{start}-{here}")
            start = following
    return ",".join(parts)


def counted(number: int, one: str, many: str = "") -> str:
    """Write a number with its noun; ``many`` is a plural that has more than an s.

    >>> counted(1, "record"), counted(1_200, "record"), counted(0, "entry", "entries")
    ('1 record', '1,200 records', '0 entries')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def checkpoint_text(checkpoint: object) -> str:
    """Write a checkpoint for people: one that a time gave has the last id that its millisecond could hold.

    >>> checkpoint_text("1769860800000-18446744073709551615"), checkpoint_text("1769860800000-2")
    ('before 1769860800001-0', '1769860800000-2')
    """
    ms, _, seq = str(checkpoint).partition("-")
    return f"before {int(ms) + 1}-0" if seq == str(SEQUENCE_MAX) and ms.isdecimal() else str(checkpoint)


def name_of(owner: str) -> str:
    """Return the worker's name in an owner's id, without the nonce; names may contain dots."""
    return owner.rpartition(".")[0] or owner


def run_of(owner: str) -> str:
    """Return the name of the connections of the process that made an owner's id: its worker's name and run.

    An earlier release named its connections by the worker alone.

    >>> run_of("w1.5e8c-02"), run_of("w-1.5e8c")
    ('w1.5e8c', 'w-1')
    """
    run, _, join = owner.rpartition("-")
    return run if run and "." not in join else name_of(owner)


def alike(said: Mapping[int, T]) -> dict[T, list[int]]:
    """Return the partitions of which the same is said together, in ascending order."""
    together: dict[T, list[int]] = {}
    for partition in sorted(said):
        together.setdefault(said[partition], []).append(partition)
    return together


def by_words(words: Mapping[int, str]) -> str:
    """Write partitions with words about each; partitions with the same words are written together."""
    return "; ".join(f"{ranges(which)} {text}".rstrip() for text, which in alike(words).items()) or "nothing"


def by_owner(owners: Mapping[int, str]) -> str:
    """Write which owner has which partitions; empty if there is none."""
    return "; ".join(f"{owner}: {ranges(which)}" for owner, which in alike(owners).items())


@dataclass_transform(frozen_default=True)
class Worded:
    """An event, an effect or a message: every subclass is a frozen dataclass.

    Transcripts write it with ``str``, by default as its name and fields.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def __str__(self) -> str:
        values = (f"{each.name}={getattr(self, each.name)}" for each in fields(self))  # type: ignore[arg-type]
        return " ".join([type(self).__name__, *values])
