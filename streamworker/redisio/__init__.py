"""DOES: one function a round trip; the only package that imports redis.

Every function that calls Redis raises ``BackendUnavailable`` without an answer, and ``BackendRefused`` if
Redis refuses, for instance because a key holds another type. Docstrings tell what else may happen.
"""
