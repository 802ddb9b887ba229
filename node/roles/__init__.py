"""Each role is a short story told in calls to the packages beside it."""
