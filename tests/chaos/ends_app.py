"""An app of sessions that end after a second of silence, for workers that are killed meanwhile."""

import os

import msgspec

from streamworker import App, Context

PARTITIONS = 4


class Seen(msgspec.Struct):
    user: str
    n: int


class Session(msgspec.Struct):
    user: str
    seen: list[int] = []


class Site:
    """The app, by its server."""

    def __init__(self, url: str | None) -> None:
        self.app = App(
            "site",
            redis_url=url,
            heartbeat_interval_ms=500,
            call_timeout_ms=800,
            session_timeout_ms=2_500,
            slow_after_ms=3_000,
        )
        self.events = self.app.stream("events", Seen, key="user", partitions=PARTITIONS)
        self.ended = self.app.stream("ended", Session, key="user", partitions=PARTITIONS, retention="1 day")
        self.sessions = sessions = self.app.table("sessions", Session, ttl="1 second")

        @self.app.processor(self.events, batch=200, tables=[sessions])
        async def follow(batch: list[Seen]) -> None:
            known = await sessions.get_many({each.user for each in batch})
            for each in batch:
                known.setdefault(each.user, Session(each.user)).seen.append(each.n)
            sessions.set_many(known)

        @follow.expired(sessions, into=self.ended)
        async def gone(user: str, session: Session, ctx: Context) -> Session:
            ctx.state["ended"] = ctx.state.get("ended", 0) + 1
            return session


app = Site(os.environ.get("STREAMWORKER_REDIS_URL")).app
