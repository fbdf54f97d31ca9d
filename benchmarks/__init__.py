"""Benchmarks that maintainers run in a checkout: ``python -m benchmarks``.

The programs run in turn (A B A B ...), each as its own process, on the same entries, until the server
has all acknowledgements. The report has the medians, their spread, and the ratio of adjacent runs: a
machine that slows down slows both. ``measuring`` has the programs of streamworker.
"""
