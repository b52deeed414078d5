"""Shared parts of the benchmarks: checked timing, records of results, and progress of long runs."""
