"""Pre-training in a swarm: rounds of many peers without a leader (docs/rounds.md)."""
