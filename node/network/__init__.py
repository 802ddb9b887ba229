"""Talking to other nodes: gossip for news, request and response for facts, blobs for bytes.

`interface` is the seam; `host` is the real network over libp2p, `memory` its double;
`store` and `exchange` move blobs. Nobody outside imports libp2p.
"""
