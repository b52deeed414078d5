"""Pruning: masks on weights and activations, and the removal of channels and heads."""
