"""Passes: analyse and transform a MaseGraph, or a plain module."""
