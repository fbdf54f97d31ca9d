"""The command line: one module a noun, all heavy imports inside the commands.

``streamworker --help`` loads typer and nothing else of weight: not redis, pyarrow or pyspark.
"""


def main() -> None:
    """Run the command line and end the process with one of ``cli.exit_codes``."""
    from streamworker.cli.root import app

    app(prog_name="streamworker")
