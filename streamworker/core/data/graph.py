"""How processors and streams of an app hang together: which of them form cycles."""

from collections.abc import Iterable


def cycles(edges: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return the cycles of a graph, each once and from its smallest node on.

    Where cycles share nodes, each node is in one of them at least.

    >>> cycles([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])
    [('a', 'b', 'c')]
    >>> cycles([("a", "a"), ("b", "c")])
    [('a',)]
    """
    follow: dict[str, list[str]] = {}
    for start, end in edges:
        follow.setdefault(start, []).append(end)
    found: dict[tuple[str, ...], None] = {}
    for start in sorted(follow):
        back = _way_back(follow, start)
        if back and not any(set(back) <= set(known) for known in found):
            first = back.index(min(back))
            found[back[first:] + back[:first]] = None
    return list(found)


def _way_back(follow: dict[str, list[str]], start: str) -> tuple[str, ...]:
    """Return the nodes of a shortest way from a node to itself; none if there is no such way."""
    ways: list[tuple[str, ...]] = [(start,)]
    seen: set[str] = set()
    for way in ways:  # It grows while it is read.
        for node in follow.get(way[-1], ()):
            if node == start:
                return way
            if node not in seen:
                seen.add(node)
                ways.append((*way, node))
    return ()
