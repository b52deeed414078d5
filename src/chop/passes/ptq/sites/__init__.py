"""Places in a graph that post-training quantisation changes, and how they store new values."""
