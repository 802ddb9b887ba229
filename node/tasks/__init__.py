"""Tasks of the swarm on one node: what doing one needs, what became of it, and what its results are made into."""
