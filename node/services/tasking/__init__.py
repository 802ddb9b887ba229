"""Tasks of the swarm: offered by whom the pool obeys, done by workers, judged by validators like rollouts."""
