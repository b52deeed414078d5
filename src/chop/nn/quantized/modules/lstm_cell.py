"""`nn.LSTMCell` in every number format, such as `LSTMCellInteger`."""

from chop.nn.quantized.layer import layers_of

__getattr__, __dir__ = layers_of(__name__)
