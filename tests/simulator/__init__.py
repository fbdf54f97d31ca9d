"""The simulator: the real cores of workers on virtual time, against the Lua that ships, with faults."""
