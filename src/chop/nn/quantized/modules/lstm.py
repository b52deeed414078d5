"""`nn.LSTM` in every number format, such as `LSTMInteger`."""

from chop.nn.quantized.layer import layers_of

__getattr__, __dir__ = layers_of(__name__)
