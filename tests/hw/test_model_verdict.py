"""A design that differs from the PyTorch model is refused, before anything is written."""

import dataclasses

import pytest
import torch
from hardware_models import SmallMlp, fixed_graph
from torch import nn

from chop.actions import build_hardware
from chop.errors import HardwareError
from chop.hw.lower import Parallelism, design_cache, lower
from chop.hw.lower.verify import Agreement, encoded, verify
from chop.ir.graph import MaseGraph
from chop.models import MLP
from chop.passes import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.emit_design import lowered_design
from chop.passes.graph.analysis import add_hardware_metadata, add_hardware_metadata_analysis_pass
from chop.passes.graph.transforms import (
    emit_bram_transform_pass,
    emit_cocotb_transform_pass,
    emit_internal_rtl_transform_pass,
    emit_verilog_top_transform_pass,
    quantize_transform_pass,
)
from chop.search.fixed_point_widths import quantize_to_widths, width_space

RANGES = {
    "layers_1": {"data_in": 1.0, "weight": 0.5, "bias": 0.5},
    "layers_3": {"data_in": 4.0, "weight": 0.5, "bias": 0.5},
}
EMITTERS = (
    emit_verilog_top_transform_pass,
    emit_internal_rtl_transform_pass,
    emit_bram_transform_pass,
    emit_cocotb_transform_pass,
)


def annotated(model, *inputs):
    graph = MaseGraph(model.eval(), dummy_in=inputs if len(inputs) > 1 else inputs[0])
    init_metadata_analysis_pass(graph)
    return add_common_metadata_analysis_pass(graph)[0]


def perceptron():
    return annotated(MLP(8, (6,), 4), torch.zeros(2, 8))


def in_widths(width):
    point = dict.fromkeys(width_space(RANGES).dimensions, width)
    graph = quantize_to_widths(perceptron(), RANGES, point)
    add_hardware_metadata_analysis_pass(graph)
    return graph


@pytest.mark.parametrize("width", [3, 8])
def test_layers_and_what_feeds_them_agree_with_the_hardware_bit_for_bit(width):
    graph = in_widths(width)
    drawn = verify(graph, lowered_design(graph))
    more = verify(graph, lowered_design(graph), torch.rand(5, 8))
    assert (more.tensors - drawn.tensors, more.values - drawn.values) == (5, 5 * 4)
    assert str(Agreement(5, 20)) == "20 output values of 5 tensors equal the PyTorch model's"


def negated(graph):
    """The design of `graph`, which is then changed."""
    design = lowered_design(graph)
    with torch.no_grad():
        graph.model.get_submodule("layers.3").weight.neg_()
    return design


def test_another_model_than_the_design_was_made_from_is_noticed_by_its_first_node():
    graph = in_widths(8)
    told = r"node 'layers_3' \(linear\): the design differs .* in \d+ of \d+ values; the first, at"
    with pytest.raises(HardwareError, match=told) as error:
        verify(graph, negated(graph))
    assert "data_in = fixed8" in str(error.value) and "must be" in str(error.value)


def test_nothing_is_written_of_a_design_that_differs(monkeypatch, tmp_path):
    graph = in_widths(8)
    design = negated(graph)
    monkeypatch.setattr(design_cache, "lower", lambda *_, **__: design)
    monkeypatch.setattr(add_hardware_metadata, "lower", lambda *_, **__: design)
    for emit in EMITTERS:
        with pytest.raises(HardwareError, match="node 'layers_3'"):
            emit(graph, {"project_dir": tmp_path})
    with pytest.raises(HardwareError, match="node 'layers_3'"):
        build_hardware(graph, tmp_path)
    assert not list(tmp_path.rglob("*"))
    emit_bram_transform_pass(graph, {"project_dir": tmp_path, "check": False})
    assert list(tmp_path.rglob("*.mem"))


def test_a_rule_for_every_layer_and_every_op_between_them():
    kinds = {path: type(module).__name__ for path, module in in_widths(5).modules.items()}
    assert kinds["layers.2"] == "ReLUInteger" and kinds["layers.3"] == "LinearInteger"


class TwoInputs(nn.Module):
    def forward(self, x, y):
        return x - y


def two_inputs():
    graph = annotated(TwoInputs(), torch.zeros(2, 3), torch.zeros(2, 3))
    config = {"name": "integer", "data_in_width": 6, "data_in_frac_width": 3}
    quantize_transform_pass(graph, {"by": "type", "sub": {"config": config}})
    return graph


def test_inputs_are_a_batch_or_a_tuple_of_one_for_each():
    graph = two_inputs()
    lowered = lower(graph, Parallelism(1))
    batch = torch.randn(4, 3)
    assert verify(graph, lowered, (batch, batch)).values > 4 * 3
    assert list(encoded(lowered, (batch, batch))) == ["data_in_0", "data_in_1"]
    with pytest.raises(HardwareError, match=r"inputs: got 1 tensors. The design has 2 inputs"):
        verify(graph, lowered, batch)


class Branches(nn.Module):
    """One value, two readers."""

    def __init__(self):
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        return self.left(x) + self.right(x)


def layer(width, frac_width, **more):
    base = {"name": "integer", "data_in_width": width, "data_in_frac_width": frac_width}
    return {"config": {**base, "weight_width": 6, "weight_frac_width": 4, **more}}


SETTINGS = {
    "unsigned": {"data_in_is_signed": False},
    "floor": {"data_in_rounding": "floor", "weight_rounding": "floor"},
    "narrow": {"data_in_narrow": True, "weight_narrow": True},
    "wrap": {"data_in_overflow": "wrap"},
    "toward zero": {"data_in_rounding": "toward_zero"},
    "a result of its own": {"data_out_width": 5, "data_out_frac_width": 2},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_a_format_reach_the_hardware(name):
    graph = annotated(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(2, 4))
    quantize_transform_pass(graph, {"by": "type", "linear": layer(6, 3, **SETTINGS[name])})
    verify(graph, lower(graph, Parallelism(2)), 4 * torch.randn(50, 4))


def test_readers_of_one_value_in_unlike_formats_each_get_theirs():
    graph = annotated(Branches(), torch.zeros(2, 4))
    quantize_transform_pass(
        graph, {"by": "name", "stem": layer(8, 4), "left": layer(4, 1), "right": layer(7, 5)}
    )
    verify(graph, lower(graph, Parallelism(2)), torch.randn(50, 4))


def test_a_mean_is_taken_before_its_reader_saturates():
    graph = annotated(nn.Sequential(nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                    nn.Linear(2, 2)), torch.zeros(2, 1, 4, 4))  # fmt: skip
    quantize_transform_pass(graph, {"by": "type", "conv2d": layer(8, 2), "linear": layer(4, 3)})
    verify(graph, lower(graph, Parallelism(2)), 8 * torch.randn(50, 1, 4, 4))


def test_a_third_that_no_format_takes_is_refused_by_its_node():
    graph = annotated(nn.Sequential(nn.Conv2d(1, 1, 1), nn.AvgPool2d(3)), torch.zeros(2, 1, 3, 3))
    quantize_transform_pass(graph, {"by": "type", "conv2d": layer(8, 2)})
    with pytest.raises(HardwareError, match=r"node '\w+' \(avg_pool2d\)"):
        verify(graph, lower(graph, Parallelism(1)))


def test_formats_set_by_hand_are_the_models():
    graph = fixed_graph(SmallMlp(), torch.zeros(2, 4), precision=(8, 3), data_out_0=(6, 2))
    lowered = lower(graph, Parallelism(2))
    verify(graph, lowered, 4 * torch.randn(20, 4))
    value = next(iter(graph.fx_graph.nodes)).meta["mase"].common.results["data_out_0"]
    assert dataclasses.replace(value).is_applied
