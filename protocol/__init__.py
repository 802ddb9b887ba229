"""What every participant must agree on: pure functions and frozen types, no I/O, no clock, no randomness of their own."""
