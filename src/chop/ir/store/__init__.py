"""A graph as a file and back: nothing in it is run, and every name is looked up in a list."""
