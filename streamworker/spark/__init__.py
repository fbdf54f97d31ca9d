"""Spark reads the acked logs: a data source, and the runner of an app's pipelines.

    options, offsets     what a query asks for; where it stands. Pure
    connection, logs     named connections; reading the acked logs from Redis
    schema               Arrow and Spark types, casting, metadata columns
    source               format("streamworker"): the classes that Spark calls
    checks, progress     what a pipeline must be; what it tells. Without pyspark
    java, session        a Java, a session; local or remote
    queries, sink        from a pipeline to a query; writing a whole result
    failures             why a query ended, out of Spark's page of frames
    driverlock           one driver at a time for a checkpoint
    pipelines            run_pipelines: watching queries, restarts, a graceful stop

Nothing is imported here: executors load ``source`` without the rest, and ``checks`` is used
where pyspark may not be installed.
"""
