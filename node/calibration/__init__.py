"""Calibration: how far honest engines differ on a run's model, and how far cheats do; the thresholds that follow."""
