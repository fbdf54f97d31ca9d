"""The command line: one module for each command.

``streamworker --help`` loads neither pyarrow nor pyspark: commands import such packages when they run.
"""


def main() -> None:
    """Run the command line; the process exits with one of ``cli.exit_codes``."""
    from streamworker.cli.root import app

    app(prog_name="streamworker")
