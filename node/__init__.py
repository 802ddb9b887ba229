"""The daemon and everything it runs."""
