"""What a node does while it is in the swarm: services of one shape, and what all of them stand on."""
