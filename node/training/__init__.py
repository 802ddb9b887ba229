"""Training: loss, advantages, the trainer process and the spool through which the daemon feeds it."""
