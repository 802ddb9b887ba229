"""`verifiers`: packages of verifiers v1, unmodified, in an environment and a process of their own. At a desk only."""
