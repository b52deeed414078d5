"""Layers derived from linear ones, for tests that split them over devices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from passes.graphs import annotate
from torch import Tensor, nn

from chop import MaseGraph
from chop.distributed.program import ProgramValue, program_of
from chop.distributed.strategies import WHOLE, Strategy
from chop.kernels.layers import QLinearInt8, QLinearPacked
from chop.nn.modules.lora import LoRALinear
from chop.nn.modules.masked import with_mask
from chop.nn.quantized import from_float
from chop.nn.quantizers import parse_format
from chop.passes.pack.coded_layers import rounded_to_codes

IN, OUT, BATCH = 128, 64, 8
Make = Callable[[nn.Linear], nn.Module]


def quantized(text: str) -> Make:
    """Return the function that quantises input, weight and bias of a layer to one format."""
    return lambda layer: from_float(layer, {"name": text})


def stored(granularity: str) -> Make:
    """Return the function that quantises a weight by learned scales of the layer."""

    def make(layer: nn.Linear) -> nn.Module:
        settings = {"weight_scale": "stored", "weight_granularity": granularity}
        settings |= {"weight_width": 8, "weight_group_size": 32}
        settings |= {"name": "scale_integer", "data_in_scale": 0.03, "bias_scale": 0.001}
        made = from_float(layer, settings)
        shape = {"tensor": (), "channel": (OUT,), "group": (OUT, IN // 32)}[granularity]
        scale = torch.rand(shape) / 500 + 1 / 1000
        made.register_parameter("weight_scale", nn.Parameter(scale))
        return made

    return make


def pruned(layer: nn.Module) -> nn.Module:
    return with_mask(layer, torch.rand(OUT, IN) > 0.5)


def adapted(layer: nn.Module) -> nn.Module:
    made = LoRALinear(layer, rank=4, alpha=8.0)
    nn.init.normal_(made.lora_B.weight)
    for parameter in made.base_layer.parameters():
        parameter.requires_grad_(False)
    return made


def coded(text: str) -> Make:
    return lambda layer: rounded_to_codes(layer, parse_format(text))


def packed(text: str) -> Make:
    return lambda layer: QLinearPacked.from_linear(layer, text)


def both(first: Make, second: Make) -> Make:
    return lambda layer: second(first(layer))


BY_PARTS = (
    *("fixed8.4", "fp8_e4m3", "minifloat_e4m3", "minifloat_denorm_e4m3", "log8", "binary"),
    *("mxint8", "mxint4/16", "mxfp8", "mxfp4", "block_fp8/16", "block_minifloat_e4m3/16"),
    *("block_log8/16", "int8/32", "fp8_block/16x32"),
)
"""Formats whose weights can be split along both dimensions."""
MEASURED = ("int8", "nvfp4", "ternary", "binary_scaling", "binary_residual2")
"""Formats that measure the whole tensor."""
DERIVED: dict[str, Make] = {
    **{text: quantized(text) for text in (*BY_PARTS, *MEASURED)},
    **{f"{text}, packed": packed(text) for text in ("mxint8", "mxint4", "mxfp8", "mxfp4")},
    "int4, packed": packed("int4"),
    "mxint3, coded": coded("mxint3"),
    "mxint6/16, coded": coded("mxint6/16"),
    "int8 rows": QLinearInt8.from_linear,
    "int8 rows, dynamic": lambda layer: QLinearInt8.from_linear(layer, quantize_input=True),
    **{f"learned scale per {name}": stored(name) for name in ("tensor", "channel", "group")},
    "pruned": pruned,
    "pruned mxint8": both(pruned, quantized("mxint8")),
    "adapted": adapted,
    "adapted mxint8": both(quantized("mxint8"), adapted),
    "adapted packed mxint4": both(packed("mxint4"), adapted),
    "adapted coded mxint3": both(coded("mxint3"), adapted),
    "adapted pruned": both(pruned, adapted),
}


class Beside(nn.Module):
    """Linear layers that all read the same input, each with a factor for its result."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(IN, OUT) for _ in range(count))
        self.register_buffer("factors", torch.ones(count))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [layer(x) * factor for layer, factor in zip(self.layers, self.factors, strict=True)]


def beside(makes: dict[str, Make]) -> tuple[MaseGraph, dict[str, Tensor]]:
    """Return an annotated graph of derived layers, as passes make them, and inputs.

    The largest result of every layer is 1, so that an error of one is not lost among the others.
    """
    torch.manual_seed(0)
    inputs = {"x": torch.randn(BATCH, IN)}
    graph = MaseGraph(Beside(len(makes)).eval(), dummy_in=inputs)
    for index, make in enumerate(makes.values()):
        layer = make(graph.model.get_submodule(f"layers.{index}")).eval()
        setattr(graph.model.layers, str(index), layer)
        with torch.no_grad():
            graph.model.factors[index] = 1 / layer(inputs["x"]).abs().max()
    return annotate(graph, inputs), inputs


def pick_named(graph: MaseGraph, name: str, devices: int) -> Callable[[ProgramValue], Strategy]:
    """Return the choice of strategy `name` where a layer has it; parameters are stored so."""
    chosen: dict[str, Strategy] = {}
    stored_as: dict[str, str] = {}
    for value in program_of(graph).values:
        fits = [s for s in value.layouts(devices) if s.name == name and not value.is_parameter]
        if fits:
            chosen[value.name] = fits[0]
            for reference in value.references:
                layout = fits[0].operands.get(reference.operand, "R")
                stored_as[reference.value] = layout if layout.startswith("S") else "R"

    def pick(value: ProgramValue) -> Strategy:
        if not value.is_parameter:
            return chosen.get(value.name, WHOLE)
        layout = stored_as.get(value.name, "R")
        return next(s for s in value.layouts(devices) if s.result == layout)

    return pick
