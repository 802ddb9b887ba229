"""Talking to other nodes: gossip for news, request and response for facts. Transport only.

`interface` is the seam; `host` is the real network over libp2p, `memory` its double. Nobody outside imports libp2p.
"""
