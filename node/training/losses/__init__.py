"""One file per loss. A recipe's name (protocol/run.py) picks the file."""
