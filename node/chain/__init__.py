"""The node's side of the chain: profile, client, event follower, and a local chain to try things on."""
