"""``streamworker demo``: the whole system on real data, checked."""

from typing import Annotated

import typer


def demo(
    json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object, last.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running, for a look with top; Ctrl-C ends it.")
    ] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="On a Redis Cluster: three primaries, a replica each.")
    ] = False,
) -> None:
    """Run the whole system on real data, and check it.

    336,776 flights go through workers that join, leave and are killed, into Spark tables. Then
    the tables are compared with the data set, and the order for each aircraft is checked. It starts a
    server of its own and needs Java, or the extra `java`. Ends with 0 only if all holds.

    \b
    Examples:
      streamworker demo
      streamworker demo --json
      streamworker demo --cluster
    """
    from streamworker.dev.demo import run_demo

    raise typer.Exit(run_demo(json_output=json, keep=keep, cluster=cluster))
