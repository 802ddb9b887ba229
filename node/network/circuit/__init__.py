"""Circuit relay v2: a connection between two members of whom neither can dial the other, carried by a third.

The library's own trusts what a relay says, carries for anybody and ends with the host's first error; only its messages
are used here, so that the bytes are those of any libp2p.
"""
