"""Softmax, norms and lines from a quantised model: PyTorch = definition = integers = RTL."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hardware_models import fixed_graph
from torch import nn

from chop.errors import HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.flow.hardware_report import stage_rows
from chop.hw.library.components import LayerNorm, Piecewise, Softmax
from chop.hw.library.fixed_norm import Affine
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.component_check import bench_design
from chop.hw.sim.emit import emit
from chop.hw.sim.exercise import exercise
from chop.hw.sim.simulate import Simulator, lint
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass

LAYER = {
    "name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "weight_width": 8,
    "weight_frac_width": 5, "bias_width": 8, "bias_frac_width": 5,
}  # fmt: skip
ROW = LAYER | {"data_out_width": 8, "data_out_frac_width": 4, "arithmetic": "integer"}
PART = ROW | {"data_out_frac_width": 8, "data_out_is_signed": False}
FINE = ROW | {"data_in_width": 14, "data_in_frac_width": 9}
RULES = {
    "by": "type",
    "linear": {"config": LAYER},
    "layer_norm": {"config": ROW},
    "rms_norm": {"config": ROW},
    "gelu": {"config": FINE},
    "silu": {"config": ROW},
    "softmax": {"config": PART},
}


class Tokens(nn.Module):
    """Every op of rows, on tokens with features."""

    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.rms, self.gelu, self.fc3 = nn.RMSNorm(8), nn.GELU(), nn.Linear(8, 4)

    def forward(self, x):
        x = self.gelu(self.fc2(self.norm(self.fc1(x))))
        return F.softmax(self.fc3(F.silu(self.rms(x))), dim=-1)


def quantised(model, x, rules=RULES):
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.3, 0.5)
    graph = MaseGraph(model.eval(), dummy_in=x)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    present = {node.meta["mase"].common.mase_op for node in graph.fx_graph.nodes}
    chosen = {op: config for op, config in rules.items() if op == "by" or op in present}
    graph, _ = quantize_transform_pass(graph, chosen)
    return graph


def alone(layer, config, shape=(3, 8)):
    """The graph of one layer."""
    model = nn.Sequential(layer)
    op = {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm", "GELU": "gelu", "Tanh": "tanh"}
    name = op.get(type(layer).__name__, "softmax")
    return quantised(model, torch.randn(1, *shape), {"by": "type", name: {"config": config}})


@pytest.fixture(scope="module")
def tokens():
    return quantised(Tokens(), torch.randn(1, 3, 6))


def test_the_model_is_the_design_is_the_definition(tokens):
    lowered = lower(tokens, Parallelism(2))
    x = torch.randn(16, 3, 6, generator=torch.Generator().manual_seed(1))
    agreement = verify(tokens, lowered, x)
    assert agreement.values == (16 + 64) * 12
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(x)))
    with torch.no_grad():
        assert torch.equal(found.float(), tokens.model(x))


def test_the_components_are_those_of_the_ops(tokens):
    design = lower(tokens, Parallelism(2)).design
    kinds = {stage.name: stage.component.kind for stage in design.stages}
    assert kinds["norm"] == "fixed_layer_norm" and kinds["rms"] == "fixed_rms_norm"
    assert kinds["gelu"] == "fixed_piecewise" and kinds["silu"] == "fixed_lut"
    assert kinds["softmax"] == "fixed_softmax"
    rows = {row.stage: row for row in stage_rows(design)}
    assert rows["norm"].cycles == rows["rms"].cycles == 12


@pytest.mark.sim
def test_the_rtl_is_exact_in_values_and_cycles(tokens, tmp_path):
    lowered = lower(tokens, Parallelism(2))
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    assert lint(tmp_path) == ""
    x = torch.randn(6, 3, 6, generator=torch.Generator().manual_seed(2)) * 2
    assert exercise(simulator, lowered.encode(x)).is_exact


@pytest.mark.parametrize(
    "layer",
    [
        nn.LayerNorm(8, elementwise_affine=False),
        nn.LayerNorm(8, bias=False, eps=0.25),
        nn.RMSNorm(8, eps=1e-3),
        nn.RMSNorm(8, elementwise_affine=False),
        nn.Softmax(dim=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("width", [5, 12, 16])
def test_every_kind_of_layer_agrees(layer, width):
    config = ROW | {"data_in_width": width, "data_out_rounding": "floor", "data_in_frac_width": 7}
    graph = alone(layer, config)
    assert verify(graph, lower(graph, Parallelism(4))).values > 0


@pytest.mark.parametrize("width", [12, 13, 16])
@pytest.mark.parametrize(
    "change", [{}, {"data_out_overflow": "wrap"}, {"data_out_width": 14}], ids=str
)
@pytest.mark.parametrize("layer", [nn.GELU("tanh"), nn.Tanh()], ids=str)
def test_functions_of_all_widths_agree(layer, width, change):
    graph = alone(layer, ROW | {"data_in_width": width, "data_in_frac_width": 9} | change)
    lowered = lower(graph, Parallelism(4))
    assert verify(graph, lowered).values > 0
    (component,) = lowered.components.values()
    assert component.kind == ("fixed_lut" if width <= 12 else "fixed_piecewise")


def test_a_norm_of_an_image_in_pixels_is_reordered_first():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool, self.norm = nn.MaxPool2d(1), nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(self.pool(x))

    graph = quantised(
        Model(), torch.randn(1, 2, 4, 4), {"by": "type", "layer_norm": {"config": ROW}}
    )
    lowered = lower(graph, Parallelism(2))
    assert "stream_reorder" in {stage.component.kind for stage in lowered.design.stages}
    assert verify(graph, lowered).values > 0


class Masked(nn.Module):
    """Softmax of what is not masked."""

    def __init__(self, fill=-math.inf, index=(slice(None), None)):
        super().__init__()
        self.fill, self.index = fill, index

    def forward(self, x, mask):
        return F.softmax(x.masked_fill(mask[self.index], self.fill), dim=-1)


def masked(model, shape=(4,)):
    inputs = torch.randn(2, 3, 4), torch.rand(2, *shape) > 0.5
    return quantised(model, inputs, {"by": "type", "softmax": {"config": PART}})


@pytest.mark.parametrize(
    ("index", "shape"),
    [((slice(None), None), (4,)), ((slice(None), slice(None), None), (3,)), (..., (3, 4))],
    ids=["elements", "rows", "all"],
)
def test_a_mask_is_a_stream_of_its_own(index, shape):
    graph = masked(Masked(index=index), shape)
    lowered = lower(graph, Parallelism(2))
    x = torch.randn(20, 3, 4), torch.rand(20, *shape) > 0.5
    assert verify(graph, lowered, x).values == (20 + 64) * 12
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(*x)))
    assert torch.equal(found.float(), graph.model(*x))
    assert lowered.components["softmax"].has_mask


class Chosen(Masked):
    """Masked where it is not kept; kept is what a number says."""

    def forward(self, x, keep):
        keep = ~(keep < 0.5)
        return F.softmax(x.masked_fill((~keep)[:, None], self.fill), dim=-1)


def test_masks_are_compared_and_turned():
    inputs = torch.randn(2, 3, 4), torch.rand(2, 4)
    graph = quantised(Chosen(), inputs, {"by": "type", "softmax": {"config": PART}})
    keep = next(node for node in graph.fx_graph.nodes if node.target == "keep")
    result = keep.meta["mase"]["common"]["results"]["data_out_0"]
    result["type"], result["precision"] = "fixed", [3, 1]
    lowered = lower(graph, Parallelism(2))
    assert verify(graph, lowered, inputs).values > 0
    kinds = [stage.component.kind for stage in lowered.design.stages]
    assert kinds.count("fixed_lut") == 3


def test_masks_that_hardware_has_not_are_refused():
    with pytest.raises(
        HardwareError, match=r"\(masked_fill\): value = -9.0. Allowed: -2\*\*100 or"
    ):
        lower(masked(Masked(-9.0)), Parallelism(2))

    class Other(Masked):
        def forward(self, x, mask):
            return F.relu(x.masked_fill(mask[:, None], self.fill))

    with pytest.raises(HardwareError, match=r"'relu' reads what is masked. Allowed: softmax"):
        lower(fixed_graph(Other(), (torch.randn(2, 3, 4), torch.rand(2, 4) > 0.5)), Parallelism(2))


def test_a_fault_behind_a_mask_is_told_of_its_own_node():
    graph = masked(Masked())
    lowered = lower(graph, Parallelism(2))
    design = lowered.design
    stages = [
        replace(s, component=replace(s.component, is_mask_kept=True)) if s.name == "softmax" else s
        for s in design.stages
    ]
    wrong = replace(lowered, design=replace(design, stages=tuple(stages)))
    with pytest.raises(HardwareError, match=r"node 'softmax' \(softmax\): the design differs"):
        verify(graph, wrong)


FLOAT = {key: value for key, value in ROW.items() if key != "arithmetic"}
REFUSED = {
    "float": (nn.LayerNorm(8), FLOAT, r"\(layer_norm\): it is computed in floating point, .*arith"),
    "float softmax": (nn.Softmax(-1), FLOAT, r"\(softmax\): it is computed in floating point"),
    "dim": (nn.Softmax(1), ROW, r"\(softmax\): dim = 1. Allowed: the last dimension"),
    "shape": (nn.LayerNorm([3, 8]), ROW, r"normalized_shape = \(3, 8\). Allowed: the last dim"),
    "bits": (nn.LayerNorm(8, eps=1e12), ROW, r"\(layer_norm\): .* sums up to 62, got .* rows of 8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_rows_cannot_be_is_refused(name):
    layer, config, told = REFUSED[name]
    with pytest.raises(HardwareError, match=told):
        lower(alone(layer, config), Parallelism(2))


# -- every entry of every table --------------------------------------------------------------------


def all_codes(component, lanes):
    """Every code of the operand in every lane, as tensors of the component."""
    number = component.source.format
    codes = np.arange(number.low, number.high + 1)
    every = np.stack([np.roll(codes, lane) for lane in range(lanes)], axis=1).reshape(-1)
    return every.reshape(-1, *component.source.shape)


def sums_met(component, rows):
    """The entries of the reciprocal's table that rows ask for."""
    top = rows.max(axis=-1, keepdims=True)
    sums = component._exponentials(top - rows).sum(axis=-1).reshape(-1)
    return {((int(s) << 16) >> (int(s).bit_length() - 1)) >> 8 & 255 for s in sums}


def roots_met(rows):
    """The entries of the root's table that rows ask for, where eps is 0."""
    size = rows.shape[-1]
    spread = size * (rows * rows).sum(axis=-1) - rows.sum(axis=-1) ** 2
    found = set()
    for u in (int(q) for q in spread.reshape(-1) if q):
        place = u.bit_length() - 1
        found.add((place & 1) << 7 | ((u << 7) >> place) & 127)
    return found


@pytest.mark.slow
@pytest.mark.sim
def test_every_entry_of_every_table_is_read_in_rtl(tmp_path):
    gelu = next(c for c in Piecewise.cases() if c.source.lanes == 2)
    byte, rng = Fixed(8, 4), np.random.default_rng(0)
    softmax = Softmax(Stream((4, 8), 2, byte), Fixed(10, 9))
    norm = LayerNorm(Stream((4, 8), 2, byte), Affine.none(8), Fixed(14, 9), 0.0)
    design = bench_design([gelu, softmax, norm])
    codes = np.concatenate([all_codes(gelu, 2)] * 4)
    shifts = rng.integers(0, 7, (len(codes), 4, 1))
    rows = rng.integers(-128, 127, (len(codes), 4, 8), endpoint=True) >> shifts
    rows[:64].reshape(-1, 8)[:, 0] = 127  # and every difference from 0 to 255
    rows[:64].reshape(-1, 8)[:, 1] = 127 - np.arange(256)
    assert len(sums_met(softmax, rows)) == len(roots_met(rows)) == 256
    inputs = {"case0_data_in_0": codes, "case1_data_in_0": rows, "case2_data_in_0": rows}
    assert Simulator(design, emit(design, tmp_path)).run(inputs).require_exact().is_exact
