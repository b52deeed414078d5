"""A small computation-graph compiler written to be read; it needs numpy alone."""
