"""Inference: the engine interface, the torch engine, and the child process that the daemon drives."""
