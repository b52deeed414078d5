"""From a model to its graph: recorded while it runs, with the sizes followed back to the inputs."""
