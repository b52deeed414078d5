"""`nn.Softplus` in every number format: `SoftplusInteger` …"""

from __future__ import annotations

from chop.nn.quantized.layer import layers_of

__getattr__, __dir__ = layers_of(__name__)
