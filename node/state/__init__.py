"""The state directory: its lock, keys and journal, and how files get into it whole."""
