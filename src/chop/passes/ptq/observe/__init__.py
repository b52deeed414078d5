"""Calibration data, and statistics of what a graph computes on it."""
