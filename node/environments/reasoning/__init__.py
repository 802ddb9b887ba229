"""`reasoning_gym`: problems that the package reasoning-gym makes by number, and its scores. An extra of its own."""
