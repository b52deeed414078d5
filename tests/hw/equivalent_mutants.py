"""Faults of `mutation_engine` that change nothing, each with the reason."""

EQUIVALENT: dict[str, str] = {}
