"""The sink into a stream: each row of a micro-batch once, whatever was killed (docs: into-a-stream).

    1. **stage**: Spark writes the rows of the batch as Parquet into the checkpoint directory;
    2. **decide**: a file names these rows, and where each partition stood before them. From then on the batch
       is these rows in this order, however often Spark computes others;
    3. **publish**: each partition takes its rows chunk by chunk, if it stands where the chunk begins;
    4. **mark**: a file says that the batch is there, and where each partition stands now.

``points`` has the words, ``staging`` the files, ``encoding`` makes entries of rows, ``publishing`` talks to
Redis, and ``sink`` is what Spark calls. A Spark Connect server needs streamworker and the program for it.
"""
