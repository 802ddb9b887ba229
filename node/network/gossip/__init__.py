"""Gossip over libp2p's meshsub wire: a tree that pushes, digests that repair it."""
