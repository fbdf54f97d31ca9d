"""Traces: the spans of sends, calls, commits and forwards, by the API of OpenTelemetry.

Others import ``ids`` and ``asking`` alone. ``asking`` imports the rest, and with it OpenTelemetry, for an app
that asks for traces.
"""
