"""Tile buffer: beats of a matrix, read by tiles and repeated."""
