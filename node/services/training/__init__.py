"""The trainer's work: verified rollouts in, batches to the learner, policies out."""
