"""Parts of a design: streams, components with their cycle models, stages and memories."""
