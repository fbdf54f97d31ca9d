"""``streamworker exporter``: serves the facts of groups for Prometheus."""

import signal
from typing import Annotated

from streamworker.cli.options import GroupPath, Processors, option
from streamworker.importing import resolve_processors


def exporter(
    app: GroupPath,
    processor: Processors = None,
    port: Annotated[
        str, option("--port PORT", "Serve /metrics here, at the loopback; or HOST:PORT.")
    ] = "9090",
) -> None:
    """Serve the facts of groups as Prometheus metrics, until a signal stops it.

    It needs no worker, and the rights of a viewer. Run one for each app. What workers measure
    themselves is at run --metrics-port.

    \b
    Examples:
      streamworker exporter shop:app
      streamworker exporter shop:app --port 0.0.0.0:9090
    """
    from streamworker.cli import logs
    from streamworker.cli.workers.exporter import page
    from streamworker.cli.workers.probes import serve

    logs.configure()
    selection = resolve_processors(app, processor)
    stops = {signal.SIGTERM, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # Before there is a thread that could take one.
    try:
        shown = page(selection)
        serve(port, {"/": shown, "/metrics": shown}, "--port")
        signal.sigwait(stops)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # Processes that are started inherit it.
