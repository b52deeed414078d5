"""Where the linear layer was; it is in `chop.hw.components`."""

from chop.hw.components import Linear, Weights

__all__ = ["Linear", "Weights"]
