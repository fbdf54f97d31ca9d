"""The checks of ``doctor`` for sentinels: they answer, agree, and are able to replace the primary."""

from collections.abc import Sequence

from streamworker.cli.doctor.checks import Check, fail, ok, warn
from streamworker.redisio.wire.primaries import Answer, SentinelView
from streamworker.redisio.wire.sentinel import SentinelTarget
from streamworker.urls import SENTINEL, host_and_port, kind_of


async def sentinel_checks(url: str) -> list[Check]:
    """Check the sentinels of a URL; return no check for a URL without sentinels."""
    if kind_of(url) != SENTINEL:
        return []
    return [of_sentinels(await SentinelTarget(url, "doctor").views())]


def of_sentinels(views: Sequence["SentinelView"]) -> Check:
    """Make one check from the sentinels' answers."""
    answers = [view.answer for view in views if isinstance(view.answer, Answer)]
    text = f"{len(answers)} of {len(views)} name a primary"
    silent = [view for view in views if not isinstance(view.answer, Answer)]
    if not answers:
        return fail("sentinels", f"{text}: {_why(silent[0])}", "Start them, and let them monitor it.")
    places = sorted({host_and_port(*answer.place) for answer in answers})
    text += f": {' and '.join(places)}"
    if len(places) > 1:
        return warn("sentinels", text, "A failover is under way, or some sentinels are cut off: look again.")
    if any(answer.is_down for answer in answers):
        return fail("sentinels", f"{text}, which they report as down", "Start it, or a replica.")
    best = max(views, key=lambda view: view.sentinels)
    if best.quorum > best.sentinels:
        text += f"; {best.quorum} must find it down, but there are only {best.sentinels} sentinels"
        return fail("sentinels", text, "Start the others, or lower the quorum.")
    if best.sentinels and best.quorum:
        text += (
            f"; if {best.quorum} of {best.sentinels} find it silent for {best.down_after_ms / 1000:g} s, "
            f"they promote one of {best.replicas} replicas"
        )
        if not best.replicas:
            return warn("sentinels", text, "Add a replica: without one no failover is possible.")
    else:
        text += "; this user may not ask for more"
    if silent:
        return warn("sentinels", f"{text}; {_why(silent[0])}", "Start it, or correct redis_url.")
    return ok("sentinels", text)


def _why(view: SentinelView) -> str:
    return (
        f"{view.address} knows no primary"
        if view.answer is None
        else str(getattr(view.answer, "message", ""))
    )
