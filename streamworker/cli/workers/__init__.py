"""The commands that start workers, pipelines and servers.

A command resolves the app, starts what it names, and turns signals into the two stages of a shutdown. Several
workers are child processes that end with the command. The exit code says why it ended.
"""
