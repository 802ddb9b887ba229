"""The local control API: status and metrics over a Unix socket that only this user can open."""
