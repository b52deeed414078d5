"""A method that looks at data is never worse than rounding to nearest on rows held back."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.passes import clip_transform_pass, gptq_transform_pass, quantize_transform_pass
from chop.passes.ptq.observe.input_sums import HELD_BACK, sums_of

CONFIG = {"name": "mxint", "weight_width": 3, "data_in_width": "NA", "bias_width": "NA"}
PASSES = {"gptq": gptq_transform_pass, "clip": clip_transform_pass}


def quantised(columns: int = 32) -> MaseGraph:
    torch.manual_seed(0)
    graph = MaseGraph(nn.Sequential(nn.Linear(columns, 16)), dummy_in=torch.zeros(2, columns))
    quantize_transform_pass(graph, {"linear": {"config": CONFIG}})
    return graph


def misleading(rows: int = 64, columns: int = 32) -> torch.Tensor:
    """Rows of one direction, followed by rows of all directions, which are held back."""
    one = torch.randn(rows, 1) @ torch.randn(1, columns)
    kept = rows - rows // HELD_BACK
    one[kept:] = torch.randn(rows - kept, columns)
    return one


def test_a_layer_that_gets_worse_on_held_back_rows_keeps_rounding_to_nearest(caplog) -> None:
    graph = quantised()
    before = copy.deepcopy(graph)
    _, info = gptq_transform_pass(graph, {"data": [misleading()], "rows": "equal"})
    assert [row["kept"] for row in info["layers"]] == ["nearest"]
    assert info["layers"][0]["plain"] == info["layers"][0]["rounded"]
    x = torch.randn(8, 32)
    assert torch.equal(graph.model(x), before.model(x))
    assert "gptq: 1 of 1 layers keep rounding to nearest" in caplog.text


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("seed", range(4))
def test_no_method_is_worse_than_nearest_on_held_back_rows(name, seed) -> None:
    torch.manual_seed(seed)
    data = torch.randn(48, 32) @ torch.randn(32, 32) if seed % 2 else misleading()
    graph = quantised()
    plain, weight = copy.deepcopy(graph), graph.model.get_submodule("0").weight.detach().clone()
    PASSES[name](graph, {"data": [data]})
    held_back = data[len(data) - len(data) // HELD_BACK :]
    exact = held_back @ weight.t() + graph.model.get_submodule("0").bias
    error, nearest = ((g.model(held_back) - exact).square().sum() for g in (graph, plain))
    assert error <= nearest * (1 + 1e-5)


def test_one_row_in_eight_is_held_back() -> None:
    rows = torch.arange(32.0).reshape(16, 2)
    sums = sums_of(rows, rows)
    assert sums.rows == 14 and sums.held_back is not None and sums.held_back.rows == 2
    assert torch.equal(sums.held_back.hessian, (rows[14:].T @ rows[14:]).double())
    assert sums_of(rows[:7], None).held_back is None
    both = sums + sums_of(rows[:7], rows[:7])
    assert both.rows == 21 and both.held_back is not None and both.held_back.rows == 2


def test_the_error_is_that_of_the_outputs_up_to_a_constant() -> None:
    torch.manual_seed(0)
    now, before = torch.randn(40, 6).double(), torch.randn(40, 6).double()
    sums = sums_of(now[:7], before[:7])  # too few to hold any back
    weight = torch.randn(3, 6).double()
    errors = []
    for rounded in (weight.round(), weight + 0.1):
        outputs = before[:7] @ weight.t() - now[:7] @ rounded.t()
        errors.append(float(outputs.square().sum()) - sums.error(rounded, weight))
    assert errors[0] == pytest.approx(errors[1])


def test_explain_names_the_layers_that_keep_nearest(capsys, tmp_path) -> None:
    from chop.cli.commands.explain import _print_fallbacks
    from chop.cli.console import Console
    from chop.cli.session import Session

    rows = [{"module": "a", "kept": "nearest"}, {"module": "b", "kept": "rounded"}]
    (tmp_path / "result.json").write_text(json.dumps({"layers": rows}))
    _print_fallbacks(Session(Console(), tmp_path, tmp_path), tmp_path)
    assert "1 of 2 layers keep rounding to nearest" in capsys.readouterr().out
