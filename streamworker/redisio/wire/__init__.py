"""Connections to one server, to a Cluster and by way of sentinels, and how their failures are told.

The rest of the project sees a ``Backend``: calls with a deadline, scripts, and blocking reads. This room
finds the node of a key and the primary of a service, and lets few attempts to connect through at a time. A
call without an answer may have been executed, and is repeated only if that is safe; a refusal changed
nothing. No error or log line shows a password.
"""
