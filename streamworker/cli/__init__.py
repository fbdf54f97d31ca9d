"""The command line: one module for each command; heavy imports are inside the commands.

``streamworker --help`` loads typer, but not redis, pyarrow or pyspark.
"""


def main() -> None:
    """Run the command line; the process exits with one of ``cli.exit_codes``."""
    from streamworker.cli.root import app

    app(prog_name="streamworker")
