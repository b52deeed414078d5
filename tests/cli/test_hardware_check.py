"""A design that differs from the model in PyTorch is refused."""

import pytest
import torch

from chop.cli.fitted import precision_space, quantized
from chop.cli.hardware_check import require_same
from chop.errors import HardwareError
from chop.ir.graph import MaseGraph
from chop.models import MLP
from chop.passes import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.passes.graph.hardware import lowered_design

RANGES = {
    "layers_1": {"data_in": 1.0, "weight": 0.5, "bias": 0.5},
    "layers_3": {"data_in": 4.0, "weight": 0.5, "bias": 0.5},
}


def graph():
    found = MaseGraph(MLP(8, (6,), 4).eval(), dummy_in={"x": torch.zeros(2, 8)})
    init_metadata_analysis_pass(found)
    return add_common_metadata_analysis_pass(found)[0]


def lower(found):
    add_hardware_metadata_analysis_pass(found)
    return lowered_design(found)


@pytest.mark.parametrize("width", [3, 8])
def test_layers_and_what_feeds_them_agree_with_the_hardware_bit_for_bit(width):
    point = dict.fromkeys(precision_space(RANGES).dimensions, width)
    found = quantized(graph(), RANGES, point)
    assert require_same(found, lower(found), None) == 64 * 4
    assert require_same(found, lower(found), (torch.rand(5, 8),)) == 5 * 4


def test_another_model_than_the_design_was_made_from_is_noticed():
    point = dict.fromkeys(precision_space(RANGES).dimensions, 8)
    found = quantized(graph(), RANGES, point)
    design = lower(found)
    with torch.no_grad():
        found.model.get_submodule("layers.3").weight.neg_()
    with pytest.raises(HardwareError, match=r"differs from the model in \d+ of 256 output values"):
        require_same(found, design, None)


def test_a_rule_for_every_layer_and_every_op_between_them():
    found = quantized(graph(), RANGES, dict.fromkeys(precision_space(RANGES).dimensions, 5))
    kinds = {path: type(module).__name__ for path, module in found.modules.items()}
    assert kinds["layers.2"] == "ReLUInteger" and kinds["layers.3"] == "LinearInteger"
