"""`Experts`, the linear layers of a mixture, in every number format, such as `ExpertsInteger`."""

from chop.nn.quantized.layer import layers_of

__getattr__, __dir__ = layers_of(__name__)
