"""`nn.AvgPool2d` in every number format: `AvgPool2dInteger` …"""

from __future__ import annotations

from chop.nn.quantized.layer import layer_classes

globals().update(layer_classes(__name__))
