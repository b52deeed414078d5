"""Passes that write a graph out, or read one in."""
