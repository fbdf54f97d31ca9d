"""Spark reads the acked logs: ``source`` is the data source, ``driver`` runs an app's pipelines.

This module imports nothing: executors load ``source`` without the rest, and ``app.py`` uses
``driver.checks`` where pyspark may not be installed.
"""
