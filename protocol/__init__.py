"""What every participant must agree on: pure functions and frozen types; no I/O, clock or randomness of their own."""
