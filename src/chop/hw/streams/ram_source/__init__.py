"""Stream of the words of a memory that can be written."""
