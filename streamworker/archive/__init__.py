"""An archive behind a stream or an acked log: its store, its segments, and the chain that they form.

It needs the extra ``archive``. Nothing here knows Redis or a worker; ``runtime`` writes and reads with it,
and so do the command line and Spark's driver.
"""
