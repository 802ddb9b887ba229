"""The processes of a node: the guardian, what the service manager hears, and children forked from one with imports."""
