"""The commands that start workers, pipelines and servers."""
