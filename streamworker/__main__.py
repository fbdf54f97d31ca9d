"""``python -m streamworker`` is the command line."""

from streamworker.cli import main

if __name__ == "__main__":
    main()
