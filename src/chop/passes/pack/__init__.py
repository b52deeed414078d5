"""Weights as bytes: the packed form of a format, and layers that compute with it."""
