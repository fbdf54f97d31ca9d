"""What decorators make of functions: processors and timers."""
