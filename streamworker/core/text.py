"""Makes untrusted text safe to print.

A terminal obeys control characters in it: they clear the screen, forge a line, or reorder text.
"""

import json


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
