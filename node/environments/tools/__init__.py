"""Tools that a model may call between its turns: Python in the sandbox, and a search over a pinned corpus."""
