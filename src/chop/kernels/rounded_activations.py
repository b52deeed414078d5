"""Activations of packed layers rounded to 8 bits in their products."""

from __future__ import annotations

from torch import nn

from chop.errors import ConfigError
from chop.kernels.layers import QLinearPacked
from chop.kernels.ops import ROUNDED

UNROUNDED = ("mxfp8",)
"""Formats of weights whose products take float activations: their elements are no integers."""


def round_activations(model: nn.Module) -> int:
    """Round the inputs of packed linear layers to MXINT8; return the number of such layers.

    Products of bytes are faster than those of floats, on CPUs above all. A layer that has a format
    for its inputs keeps it, and so does a layer with MXFP8 weights. Raise if no layer is left.

    >>> layer = QLinearPacked.from_linear(nn.Linear(64, 8), "mxint4")
    >>> round_activations(layer), str(layer.quantizers["data_in"])
    (1, 'mxint8')
    """
    packed = [layer for layer in model.modules() if isinstance(layer, QLinearPacked)]
    layers = [layer for layer in packed if layer.format not in UNROUNDED]
    if not layers:
        present = f"weights in {packed[0].format}" if packed else "no packed linear layers"
        raise ConfigError(
            f"round_activations: the model has {present}. Give packed weights, as by --pack mxint4 "
            "or a GGUF file, in another format than mxfp8."
        )
    for layer in layers:
        layer.quantizers = {"data_in": ROUNDED, **layer.quantizers}
    return len(layers)
