"""Circuit relay v2: a connection between two members of whom neither can dial the other, carried by a third.

The library's own carries for anybody, one circuit for each caller, and is called by any relay; only its messages are
used here, so that the bytes are those of any libp2p.
"""
