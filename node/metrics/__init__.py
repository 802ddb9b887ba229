"""What training says about itself: one record per step, alarms, and where both go."""
