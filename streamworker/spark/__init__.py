"""Spark reads the acked logs: a data source, and the runner of an app's pipelines.

    options, offsets     what a query asks for; where it stands. Pure
    connection, logs     named connections; reading the acked logs from Redis
    schema               Arrow and Spark types, casting, metadata columns
    source               format("streamworker"): the classes that Spark calls
    checks, progress     what a pipeline must be; what it tells. Without pyspark
    session, sink        a local session; writing a result
    pipelines            run_pipelines: queries, restarts, a graceful stop

Nothing is imported here: executors load ``source`` without the rest, and ``checks`` is used
where pyspark may not be installed.
"""
