"""Being in the pool: registered, staked, leased, and aware of who else is."""
