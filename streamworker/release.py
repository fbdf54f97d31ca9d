"""The version of this installation."""

from functools import cache


@cache
def release() -> str:
    """Return the version of the package; that of modules which nobody installed is ``0.0.0``."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("streamworker")
    except PackageNotFoundError:
        return "0.0.0"
