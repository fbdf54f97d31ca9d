"""A small Redis in memory that runs the Lua scripts as they are shipped.

It has the commands that the scripts use, and no others: one that is missing ends the run with an error.
``tests/contract/test_store.py`` holds it to real servers.
"""
