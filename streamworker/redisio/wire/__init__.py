"""Connections to one server, to a Cluster and by way of sentinels, and how their failures are told."""
