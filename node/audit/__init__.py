"""Audits of the trainer: a step that was published is looked at again, by three tests (docs/trainer-audit.md)."""
