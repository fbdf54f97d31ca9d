"""``streamworker doctor`` and ``streamworker repair``: what is checked, and what is repaired."""
