"""``streamworker demo``: runs the whole system on real data and checks the result."""

from typing import Annotated

import typer


def demo(
    json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object, last.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running, to look at it with top; Ctrl-C ends it.")
    ] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Use a Redis Cluster of three primaries with a replica each.")
    ] = False,
) -> None:
    """Run the whole system on real data, and check it.

    336,776 flights go through workers that join, leave and are killed, into Spark tables. Then
    the command compares the tables with the data set, and checks the order for each aircraft. It
    starts its own server and needs Java, or the extra `java`. It exits with 0 only if all checks pass.

    \b
    Examples:
      streamworker demo
      streamworker demo --json
      streamworker demo --cluster
    """
    from streamworker.dev.demo import run_demo

    raise typer.Exit(run_demo(json_output=json, keep=keep, cluster=cluster))
