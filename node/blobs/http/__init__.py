"""Blobs and policies over HTTP: for relays, CDNs, SHARDCAST clients, and nodes that only HTTP reaches."""
