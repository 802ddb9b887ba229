"""Environments behind a server: what it says is witnessed by a quorum, and never recomputed."""
