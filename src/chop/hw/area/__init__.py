"""Parts lists of components: what a mapper gets to map, counted from the RTL's declarations."""
