"""What a node says of itself to its owner's programs: the control socket and /metrics."""
