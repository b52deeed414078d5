"""Stream of the words of a table."""
