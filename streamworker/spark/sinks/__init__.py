"""What writes each micro-batch of a pipeline once: functions of ``foreachBatch``, which Spark calls.

They run in the driver, with a remote Spark on the server, to which they travel by value: the modules import
the standard library and each other, and packages where they are used.
"""
