"""Commands about archives: how far they are, what is wrong with them, what leaves them, and ``erase``.

Only these modules of the command line import ``streamworker.archive``, each when it runs.
"""
