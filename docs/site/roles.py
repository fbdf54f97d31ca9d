"""Docstrings on the site: what they name becomes a link.

A role such as :class:`App` leads to the reference if the name is public, and is code otherwise. "docs:
retention" leads to that page.
"""

import re

import griffe

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?\.?([^`]+)`")
CODE = re.compile(r"``(.+?)``")
PAGE = re.compile(r"docs: ([a-z/-]+)")


class Roles(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Go through all that the package has."""
        public = {str(name).strip("'") for name in pkg.exports or ()}

        def written(role: re.Match[str]) -> str:
            name = role[1].removeprefix(f"{pkg.name}.")
            return f"[`{name}`][{pkg.name}.{name}]" if name.partition(".")[0] in public else f"`{name}`"

        waiting: list[griffe.Object] = [pkg]
        while waiting:
            thing = waiting.pop()
            if thing.docstring:
                text = CODE.sub(r"`\1`", ROLE.sub(written, thing.docstring.value))
                thing.docstring.value = PAGE.sub(r"docs: [\1](../\1.md)", text)
            waiting += (member for member in thing.members.values() if not member.is_alias)
