"""A run on one machine: a learner and one engine, no chain, no peers."""
