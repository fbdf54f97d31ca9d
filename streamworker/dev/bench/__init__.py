"""``streamworker bench``: figures that people can trust, made on their own Redis.

Ours and the peers run in turn (A B A B ...) in one run of the program, each as a process of its own, on
the same entries, until the server says that all of them are committed. What is told is the median, its
spread, and the ratio of runs that stood side by side: a machine that slows down slows both.
"""
