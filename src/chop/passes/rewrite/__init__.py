"""Tools that every pass uses to read, run and change a graph."""
