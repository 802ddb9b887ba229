"""Every HTTP listener of a node, and nothing of what is served there: sockets, sharing, TLS, bounds."""
