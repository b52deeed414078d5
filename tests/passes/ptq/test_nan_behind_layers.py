"""GPTQ on layers whose rounding decides whether later values exist: logarithms of filter banks."""

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.errors import PassError
from chop.passes import (
    gptq_transform_pass,
    quantize_transform_pass,
    sensitivity_analysis_pass,
)
from chop.passes.ptq.observe.curvature import EQUAL_SHARE, row_importances
from chop.passes.ptq.solve.column_feedback import inverse_factor

FORMAT = {
    "name": "scale_integer",
    "weight_width": 4,
    "weight_granularity": "channel",
    "data_in_width": "NA",
    "bias_width": "NA",
}


COLUMNS = 32


class LoudnessOfBands(nn.Module):
    """Weights and inputs are never below zero, nor is what the logarithm reads."""

    def __init__(self):
        super().__init__()
        self.bands = nn.Linear(COLUMNS, 8, bias=False)
        self.head = nn.Linear(8, 4, bias=False)
        weight = torch.rand(8, COLUMNS)
        weight[:, COLUMNS // 2 :] = 0.0
        self.bands.weight = nn.Parameter(weight)

    def forward(self, x):
        return self.head(torch.log(self.bands(x) + 1e-3))


def spectra(count: int = 4) -> list[torch.Tensor]:
    """Rows in which the columns with weights of zero are faint copies of the others.

    Large weights there could make up for the rounding of the others. The first row has sound in
    these columns alone.
    """
    torch.manual_seed(1)
    batches = []
    for _ in range(count):
        loud = 10 * torch.rand(16, COLUMNS // 2)
        rows = torch.cat([loud, 0.1 * loud + 0.001 * torch.rand_like(loud)], 1)
        rows[0], rows[0, COLUMNS // 2 :] = 0.0, 0.1
        batches.append(rows)
    return batches


@pytest.fixture
def graph():
    torch.manual_seed(0)
    graph = MaseGraph(LoudnessOfBands(), dummy_in=spectra(1)[0])
    graph, _ = quantize_transform_pass(graph, {"linear": {"config": FORMAT}})
    return graph


def test_a_layer_whose_rounding_makes_a_logarithm_nan_keeps_rounding_to_nearest(graph):
    batches = spectra()
    graph, info = gptq_transform_pass(graph, {"data": batches, "rows": "equal"})
    assert info["layers"][0]["kept"] == "nearest"
    assert all(graph.model(x).isfinite().all() for x in batches)


def test_calibration_data_with_nan_is_refused_with_the_layer_and_the_batch(graph):
    batches = spectra()
    batches[2][3, 5] = torch.nan
    with pytest.raises(PassError, match=r"'bands': its inputs on batch 2 have NaN or infinity"):
        gptq_transform_pass(graph, {"data": batches, "rows": "equal"})


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_sums_that_are_not_finite_have_no_factor(bad):
    hessian = torch.eye(3, dtype=torch.double)
    hessian[1, 1] = bad
    with pytest.raises(PassError, match="have NaN or infinity"):
        inverse_factor(hessian, 0.01)


class MagnitudeOfBands(nn.Module):
    """The magnitude of two filters; a square root has no derivative at 0, where rows are silent."""

    def __init__(self):
        super().__init__()
        self.real, self.imaginary = (nn.Linear(COLUMNS, 8, bias=False) for _ in range(2))
        self.head = nn.Linear(8, 4, bias=False)

    def forward(self, x):
        power = self.real(x).square() + self.imaginary(x).square()
        return self.head(power.sqrt())


FORMATS = {f"w{width}": {**FORMAT, "weight_width": width} for width in (4, 8)}


def test_silent_rows_leave_the_losses_of_a_filter_bank_numbers():
    torch.manual_seed(0)
    loud = torch.randn(12, COLUMNS)
    silent = torch.cat([loud, torch.zeros(4, COLUMNS)])
    mg = MaseGraph(MagnitudeOfBands().eval(), dummy_in=loud)
    losses = {
        count: {
            (row["module"], row["format"]): row["loss"]
            for row in sensitivity_analysis_pass(mg, {"data": [rows], "formats": FORMATS})[1][
                "table"
            ]
        }
        for count, rows in ((12, loud), (16, silent))
    }
    assert losses[12].keys() == losses[16].keys() and len(losses[12]) == 6
    for key, loss in losses[12].items():
        assert 0 < losses[16][key] < 4 * loss  # other labels are drawn for other rows


def test_silent_rows_have_the_least_weight_in_gptq():
    torch.manual_seed(0)
    rows = torch.cat([torch.randn(12, COLUMNS), torch.zeros(4, COLUMNS)])
    mg = MaseGraph(MagnitudeOfBands().eval(), dummy_in=rows)
    layers = {n: mg.model.get_submodule(n.target) for n in mg.nodes if n.op == "call_module"}
    weights = row_importances(mg, layers, [{"x": rows}], "gptq.data")
    for node, (own,) in weights.items():
        assert own is not None and bool(own.isfinite().all())
        if node.target != "head":
            assert torch.equal(own[12:], torch.full((4,), EQUAL_SHARE))
            assert bool((own[:12] > EQUAL_SHARE).all())
