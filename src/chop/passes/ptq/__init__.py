"""Post-training quantisation: observe a model on data, solve for weights, edit its layers."""
