"""Tools for a developer's machine: the embedded server and the demo. Production does not need them.

The server is a real one, started with a private socket and ended with its process. The demo kills workers
while records flow, and then compares Spark's tables with the data set: its verdict is counted, not claimed.
"""
