"""Passes on plain modules, without a graph."""
