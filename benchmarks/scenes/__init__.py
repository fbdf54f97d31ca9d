"""What ``python -m benchmarks`` can measure, a module a scene."""
