"""`streamworker top` on a real terminal and a real server."""

from streamworker.cli.exit_codes import ExitCode
from streamworker.dev.server import EmbeddedServer
from tests.cli.conftest import OpenTerminal
from tests.helpers import wait_for


def test_the_live_view_on_a_terminal_obeys_its_keys(terminal: OpenTerminal) -> None:
    """Tab switches the processor, o shows all of them, p pauses, q gives the terminal back."""
    view = terminal("top", "shop:app")
    wait_for(lambda: "orders → audit" in view.frame, "the first processor is shown")
    view.press("\t")
    wait_for(lambda: "orders → price" in view.frame, "the second processor is shown")
    view.press("o")
    wait_for(lambda: "2 processors" in view.frame, "all processors are shown")
    view.press("o")
    wait_for(lambda: "orders → price" in view.frame, "the second processor is shown again")
    view.press("p")
    wait_for(lambda: "PAUSED" in view.frame, "it is paused")
    view.press("q")
    assert view.wait() == ExitCode.OK
    assert view.text.rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in view.text


def test_the_live_view_survives_redis_going_away_and_coming_back(
    terminal: OpenTerminal, own_server: EmbeddedServer
) -> None:
    """A banner tells the age of what is shown; it goes when there is an answer again."""
    view = terminal("top", "shop:app", STREAMWORKER_REDIS_URL=own_server.url)
    wait_for(lambda: "rebalances" in view.frame, "the first processor is shown")
    own_server.kill()
    wait_for(lambda: "What you see is" in view.frame, "the banner is shown")
    assert "rebalances" in view.frame
    own_server.restart()
    wait_for(lambda: "What you see is" not in view.frame, "the banner is gone")
    view.press("q")
    assert view.wait() == ExitCode.OK
