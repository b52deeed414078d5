"""Scales that layers store for their operands, from calibration or rounding."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, fx

from chop.ir.meta import MaseMetadata
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers.scale_integer import STORED
from chop.passes.ptq.observe.operand_observer import explicit_settings

IS_APPLIED = "is_applied"


def store_scale(layer: QuantizedModule, role: str, scale: Tensor) -> None:
    """Let `layer` keep the scales of one operand in a buffer."""
    form = layer.quantizers[role].scaled
    assert form is not None, f"{layer.quantizers[role]} has no scale"
    # what took the weight's settings so far keeps its own: it has no scales stored
    others = {r: q for r, q in layer.quantizers.items() if r not in (role, "data_out")}
    config = dict(layer.config)
    for other, own in others.items():
        if not any(key.startswith(f"{other}_") for key in config):
            config |= explicit_settings(own, other)
    name = f"{role}_scale"
    if hasattr(layer, name):
        delattr(layer, name)
    place = next((p.device for p in layer.parameters()), scale.device)
    layer.register_buffer(name, scale.detach().clone().to(place))
    config[name] = STORED
    layer.set_formats(config, {**layer.quantizers, role: replace(form, scale=STORED)})


def adopt_scales(node: fx.Node, layer: QuantizedModule) -> None:
    """Give `layer` the scales that calibration wrote on `node`, where its formats ask for them."""
    meta = node.meta.get("mase")
    noted = meta.software.calibration if isinstance(meta, MaseMetadata) else None
    for role, form in layer.quantizers.items():
        found = (noted or {}).get(role, {})
        if form.is_stored and isinstance(found.get("scale"), Tensor) and not found.get(IS_APPLIED):
            store_scale(layer, role, found["scale"])
            found[IS_APPLIED] = True
