"""Audits of the trainer's steps."""
