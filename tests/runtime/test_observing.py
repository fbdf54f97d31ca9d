"""Who observes a process: several observers are told the same."""

import msgspec

from streamworker import App
from streamworker.declaring.specs import StreamSpec
from streamworker.runtime.observing import Observer, observe


class Number(msgspec.Struct):
    """A record."""

    value: int


class Listing(Observer):
    """Keeps what it is told of sends."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def sent(self, spec: StreamSpec, seconds: float, records: int, waited: int) -> None:
        """Keep it."""
        self.told.append((spec.name, seconds, records, waited))


def test_each_observer_of_an_app_is_told() -> None:
    """What one of them does not want to know is told the others all the same."""
    app = App("watched")
    stream = app.stream("numbers", Number)
    first, deaf, last = Listing(), Observer(), Listing()
    for each in (first, deaf, last):
        observe(app, each)
    assert app.observer is not None
    app.observer.sent(stream.spec, 0.5, 3, 0)
    app.observer.repeated(stream.spec)
    assert first.told == last.told == [("numbers", 0.5, 3, 0)]
