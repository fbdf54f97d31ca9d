"""Runs the command line with ``python -m streamworker``."""

from streamworker.cli import main

if __name__ == "__main__":
    main()
