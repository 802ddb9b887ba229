"""Calibration: how far honest engines differ on a run's model, and how far cheats do; the cuts that follow."""
