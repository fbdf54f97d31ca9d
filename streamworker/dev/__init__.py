"""Tools for a developer's machine: the embedded server and the demo. Production does not need them."""
