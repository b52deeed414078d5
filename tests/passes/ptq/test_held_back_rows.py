"""A method that looks at data is never worse than rounding to nearest on rows held back."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from covering import slow
from torch import nn

from chop import MaseGraph
from chop.actions.post_training import METHODS, method, quantize_with_data
from chop.passes import gptq_transform_pass, quantize_transform_pass
from chop.passes.ptq.observe.held_back import HELD_BACK, RowSplit, checked_fit
from chop.passes.ptq.observe.row_sums import sums_of

CONFIG = {"name": "mxint", "weight_width": 3, "data_in_width": "NA", "bias_width": "NA"}


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
    assert "gptq: 1 layers keep rounding to nearest" in caplog.text


class Normed(nn.Module):
    """A norm and a linear layer, so that factors can move between them."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.norm, self.layer = nn.RMSNorm(columns), nn.Linear(columns, rows)
        self.norm.weight.data.exponential_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.norm(x))


def dead_inputs(rows: int, columns: int) -> torch.Tensor:
    """Rows in which every second input is always zero."""
    x = torch.randn(rows, columns)
    x[:, ::2] = 0
    return x


def outliers(rows: int, columns: int) -> torch.Tensor:
    """Rows in which some inputs are much larger than the others."""
    x = torch.randn(rows, columns)
    x[:, :3] *= 40
    return x


def shifted(rows: int, columns: int) -> torch.Tensor:
    """Rows whose held-back part has another mean and other strong inputs."""
    x = outliers(rows, columns)
    x[rows - rows // HELD_BACK :] = x[rows - rows // HELD_BACK :].flip(1) + 2
    return x


def correlated(rows: int, columns: int) -> torch.Tensor:
    """Rows of a few directions."""
    return torch.randn(rows, 5) @ torch.randn(5, columns) + 0.01 * torch.randn(rows, columns)


def opposed(rows: int, columns: int) -> torch.Tensor:
    """Rows of strong positive inputs; in the held-back rows the others are strong and negative."""
    x, half = 0.01 * torch.randn(rows, columns), columns // 2
    fitted = rows - rows // HELD_BACK
    x[:fitted, :half] += torch.rand(fitted, half) + 3
    x[fitted:, half:] -= torch.rand(rows - fitted, half) + 3
    return x


DATA = {f.__name__: f for f in (misleading, dead_inputs, outliers, shifted, correlated, opposed)}
NARROW = {"name": "mxint", "weight_width": 3, "data_in_width": "NA", "bias_width": "NA"}
BOTH = {**NARROW, "data_in_width": 4, "bias_width": 4}
INTEGERS = {"name": "scale_integer", "weight_width": 3, "data_in_width": "NA", "bias_width": "NA"}
FORMATS = {"weights": NARROW, "weights and inputs": BOTH, "integers": INTEGERS}
METHOD_OPTIONS = {
    "gptq": {"rows": "equal"},
    "clip": {},
    "correct_bias": {},
    "learned_rounding": {"steps": 12},
    "smooth": {},
    "awq": {},
    "smooth at a fixed strength": {"alpha": 0.9},
}


def run_method(label: str, config: Mapping[str, Any], graph: MaseGraph, x: torch.Tensor) -> Any:
    name, options = label.split(" ")[0], {label.split(" ")[0]: METHOD_OPTIONS[label]}
    return quantize_with_data(graph, {"linear": {"config": config}}, [x], name, options)


CASES = [
    (label, data, config) if (i + j + k) % len(FORMATS) == 0 else slow((label, data, config))
    for i, label in enumerate(METHOD_OPTIONS)
    for j, data in enumerate(DATA)
    for k, config in enumerate(FORMATS)
]
"""Every method meets all data and all formats; the other combinations are slow."""


@pytest.mark.share(6)
@pytest.mark.parametrize(("label", "data", "config"), CASES)
def test_no_method_is_worse_than_nearest_on_held_back_rows(label, data, config) -> None:
    for seed in range(2):
        torch.manual_seed(seed)
        model, x = Normed(32, 16), DATA[data](64, 32)
        held_back = x[len(x) - len(x) // HELD_BACK :]
        exact, errors = model(held_back).detach(), {}
        for name in ("nearest", label):
            graph = MaseGraph(copy.deepcopy(model), dummy_in=x[:2])
            if name == "nearest":
                quantize_with_data(graph, {"linear": {"config": FORMATS[config]}}, [x])
            else:
                run_method(label, FORMATS[config], graph, x)
            errors[name] = float((graph.model(held_back).detach() - exact).square().sum())
        assert errors[label] <= errors["nearest"] * (1 + 1e-4), (seed, errors)


def test_the_law_covers_every_method_that_changes_layers_by_data() -> None:
    others = {"nearest", "fold_batch_norm"} | {n for n, m in METHODS.items() if m.is_checked}
    assert {label.split(" ")[0] for label in METHOD_OPTIONS} == set(METHODS) - others


@pytest.mark.parametrize("label", ["correct_bias", "learned_rounding", "smooth", "awq"])
def test_a_method_that_misleads_falls_back_with_a_note(label, caplog) -> None:
    torch.manual_seed(0)
    model, x = Normed(32, 16), opposed(64, 32)
    model.norm.weight.data.fill_(1.0)
    graph = MaseGraph(model, dummy_in=x[:2])
    records = run_method(label, NARROW, graph, x)
    assert records["fallbacks"] == {label: ["layer"]}
    assert "1 layers keep rounding to nearest, which is better on held-back rows" in caplog.text


def test_a_method_that_makes_the_whole_model_worse_is_left_out(caplog) -> None:
    torch.manual_seed(0)
    graph = MaseGraph(Normed(32, 16), dummy_in=torch.zeros(2, 32))
    weight = graph.model.layer.weight.detach().clone()
    with METHODS.restored():

        @method("spoil", when="before", is_checked=True)
        def _spoil(graph: MaseGraph, batches: Any, settings: Any) -> dict[str, Any]:
            """Enlarge one row, in place of the layer's weight."""
            layer = graph.model.layer
            layer.weight = nn.Parameter(layer.weight.detach() * torch.linspace(1, 9, 32))
            return {"spoilt": True}

        records = quantize_with_data(
            graph, {"linear": {"config": NARROW}}, [torch.randn(16, 32)], "spoil"
        )
    assert records["fallbacks"] == {"spoil": ["the whole model"]} and "spoilt" not in records
    assert torch.equal(graph.model.layer.weight, weight)
    assert "quantize: spoil makes the model worse and is left out." in caplog.text


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ({"fitted": 1.0, "whole": 0.5}, "whole"),
        ({"fitted": 1.0, "whole": 3.0}, "fitted"),
        ({"fitted": 3.0, "whole": 0.5}, None),
        ({"fitted": float("nan"), "whole": 0.5}, None),
    ],
)
def test_a_fit_that_passes_is_repeated_on_all_rows(errors, expected) -> None:
    def error(fit: str | None, rows: str) -> float:
        assert rows == "held back"
        return 2.0 if fit is None else errors[fit]

    split = RowSplit("fitted", "held back", "whole")
    assert checked_fit(lambda rows: rows, error, split) == expected
    assert checked_fit(lambda rows: rows, error, RowSplit("fitted")) == "fitted"


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
    from chop.cli.commands.explain import _print_notes_of_run
    from chop.cli.console import Console
    from chop.cli.session import Session

    (tmp_path / "result.json").write_text(json.dumps({"fallbacks": {"awq": ["a", "b"]}}))
    _print_notes_of_run(Session(Console(), tmp_path, tmp_path), tmp_path)
    assert "awq: rounding to nearest was better" in (text := capsys.readouterr().out)
    assert "kept for a, b" in text
