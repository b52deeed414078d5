"""Join of two streams."""
