"""Numerical cores that choose rounded weights, factors and rotations, from tensors alone."""
