"""The simulator: the real cores of workers on virtual time, against a model of Redis, with faults."""
