"""Makes text of others safe to store, to log and to print.

A terminal obeys control characters in it: they clear the screen, forge a line, or reorder text. UTF-8 cannot
hold half of a surrogate pair, and what writes it to Redis or to a log would raise an error.
"""

import json
from collections.abc import Callable

TEXT_MAX = 1_000
"""Characters of an error, a reason or a value of others that are stored, logged and shown."""


def printable(text: str) -> str:
    r"""Return text as one line that moves, hides and reorders nothing, with the escapes of JSON.

    >>> print(printable("a\x1b[2J\x9b\nError: b\u202e"), printable("Grüße 日本"))
    a\u001b[2J\u009b\nError: b\u202e Grüße 日本
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def printable_lines(text: str) -> list[str]:
    """Return the lines of a multi-line text, indented so that none looks like a line of streamworker."""
    return [f"    {printable(line)}" for line in text.expandtabs().rstrip("\n").split("\n")]


def storable(value: object, form: Callable[[object], str] = str) -> str:
    r"""Return a value of others as one printable line of at most ``TEXT_MAX`` characters; never raise.

    >>> print(storable("caf\ud83d \0\n x"), len(storable("x" * 10_000_000)), storable("a", repr))
    caf\ud83d \u0000 x 1000 'a'
    """
    try:
        text = " ".join(form(value)[: 2 * TEXT_MAX].split())
    except BaseException:  # noqa: BLE001 - the class is somebody's
        return f"{form.__name__}() of it raises an error, too"
    return printable(text)[:TEXT_MAX]


def in_words(error: BaseException, *, named: bool = True) -> str:
    """Return an error's class name and message as ``storable`` does; the name alone without a message."""
    name = storable(type.__dict__["__name__"].__get__(type(error)))  # A metaclass may redefine it.
    text = storable(error)
    return ((f"{name}: {text}" if named else text) if text else name)[:TEXT_MAX]
