"""From emitted RTL to a part: synthesis, routing, prediction, exploration, reports."""
