"""For a developer's own machine: the embedded server and the demo. Production needs none of it."""
