"""Environments: numbered problems and deterministic scores. See `base.py` for the interface."""
