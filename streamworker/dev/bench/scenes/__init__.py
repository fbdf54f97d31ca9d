"""What ``streamworker bench`` can measure, a module a scene."""
