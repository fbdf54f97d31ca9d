"""DOES: one function a round trip; the only package that imports redis."""
