"""Passes on a MaseGraph."""
