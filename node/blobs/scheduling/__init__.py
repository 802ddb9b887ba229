"""Who fetches which piece from whom, and who is served next: the decisions of the exchange, and nothing else.

Pure state machines. No I/O, no clock, no randomness but the seed that is passed in: the daemon's exchange and the
simulation in `benchmarks/simulation/fetching.py` run this same code.
"""
