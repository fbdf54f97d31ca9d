"""Spark reads the acked logs: a data source, and the runner of an app's pipelines.

    options, offsets     the options of a query; its positions in the logs. Pure
    connection, logs     named connections; reading the acked logs from Redis
    schema               Arrow and Spark types, casting, metadata columns
    source               format("streamworker"): the classes that Spark calls
    checks, progress     checks of pipeline declarations; progress events. Without pyspark
    java, scratch        finding a Java; the folder of a session
    session              starting a local Spark session, or connecting to a remote one
    queries, sink        from a pipeline to a query; replacing a whole result
    tables               whether a table of files belongs to a checkpoint directory
    failures             the cause of a failed query, from the text of Spark's exception
    driverlock           one driver at a time for a checkpoint directory
    pipelines            run_pipelines: watching queries, restarts, a graceful stop

This module imports nothing: executors load ``source`` without the rest, and ``app.py`` uses
``checks`` where pyspark may not be installed.
"""
