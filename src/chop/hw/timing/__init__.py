"""Timing of a design: exact cycle counts, stalls, and the depths of its FIFOs."""
