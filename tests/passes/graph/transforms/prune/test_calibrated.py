"""Pruning by what layers are given: against the definitions, written out slowly in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from compression_models import QUANTIZE, bert_batch, bert_graph, logits, mlp, mlp_graph
from torch import Tensor, nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ConfigError, PassError
from chop.nn.modules import Masked
from chop.passes.prune.calibrated import PruningChoice, pruned_with_feedback
from chop.passes.ptq.observe.layer_inputs import input_rows


def prune(graph: MaseGraph, batches: Any, **fields: Any) -> dict[str, Any]:
    extra = {key: fields.pop(key) for key in ("num_samples", "keep", "damping") if key in fields}
    given = {"weight": {"sparsity": 0.5, **fields}, "batches": batches, **extra}
    return passes.prune_transform_pass(graph, given)[1]


def batches_of(*shape: int, count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    scale = torch.linspace(0.1, 3.0, shape[1]).reshape(-1, *[1] * (len(shape) - 2))
    return [torch.randn(shape, generator=generator) * scale for _ in range(count)]


def inputs_of(model: nn.Module, path: str, batches: list[Tensor]) -> np.ndarray:
    """The rows that the weight of a layer is multiplied with, caught by a hook."""
    layer, seen = model.get_submodule(path), []
    hook = layer.register_forward_pre_hook(lambda m, args: seen.append(input_rows(m, args[0])))
    with torch.no_grad():
        for batch in batches:
            model(batch)
    hook.remove()
    return torch.cat(seen).double().numpy()


# -- Wanda by its definition -----------------------------------------------------------------


def wanda_by_definition(weight: np.ndarray, x: np.ndarray, share: float) -> np.ndarray:
    """What stays: each row on its own, without its lowest |w| times the norm of its column."""
    norms = np.sqrt((x**2).sum(0))
    keep = np.ones(weight.shape, dtype=bool)
    for row, values in enumerate(weight):
        order = np.argsort(np.abs(values) * norms, kind="stable")
        keep[row, order[: round(share * len(values))]] = False
    return keep


def test_wanda_compares_weight_times_norm_of_its_input_within_each_row() -> None:
    graph, batches = mlp_graph(), batches_of(6, 8)
    weights = {p: graph.model.get_submodule(p).weight.detach().clone() for p in ("fc1", "head")}
    info = prune(graph, batches, method="wanda", sparsity=0.25)
    assert info["sparsity"] == 0.25
    for path, weight in weights.items():  # layers before it are pruned: the graph as it is now
        x = inputs_of(graph.model, path, batches)
        keep = wanda_by_definition(weight.double().numpy(), x, 0.25)
        pruned = graph.model.get_submodule(path).weight.detach()
        assert np.array_equal(pruned.numpy() != 0, keep)
        assert torch.equal(pruned[pruned != 0], weight[pruned != 0])


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_wanda_of_a_convolution_sees_the_patches_of_its_group(groups: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=groups)
    graph = MaseGraph(nn.Sequential(layer).eval(), dummy_in=torch.randn(2, 4, 8, 8))
    weight, batches = layer.weight.detach().double().numpy().copy(), batches_of(2, 4, 8, 8)
    prune(graph, batches, method="wanda")
    kept = graph.model.get_submodule("0").weight.detach().numpy() != 0
    x = inputs_of(nn.Sequential(layer), "0", batches)
    columns, rows = x.shape[1] // groups, 8 // groups
    for group in range(groups):
        part = slice(group * rows, (group + 1) * rows)
        seen = x[:, group * columns : (group + 1) * columns]
        keep = wanda_by_definition(weight[part].reshape(rows, -1), seen, 0.5)
        assert np.array_equal(kept[part].reshape(rows, -1), keep)


@pytest.mark.parametrize(("n", "m"), [(2, 4), (4, 8)])
@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_n_of_m_keeps_n_of_every_m_neighbours(method: str, n: int, m: int) -> None:
    graph, batches = mlp_graph(), batches_of(50, 8)
    chosen = {"granularity": f"{n}:{m}", "target_modules": ["fc1", "fc2"]}
    prune(graph, batches, method=method, **chosen)
    for path in ("fc1", "fc2"):
        kept = (graph.model.get_submodule(path).weight != 0).reshape(-1, m).sum(1)
        assert kept.unique().tolist() == [n]


def test_wanda_over_all_layers_keeps_the_largest_scores_of_the_whole_model() -> None:
    graph, batches = mlp_graph(), batches_of(20, 8)
    scores = {
        path: np.abs(graph.model.get_submodule(path).weight.detach().double().numpy())
        * np.linalg.norm(inputs_of(graph.model, path, batches), axis=0)
        for path in ("fc1", "fc2", "head")
    }
    info = prune(graph, batches, method="wanda", scope="global")
    limit = np.median(np.concatenate([each.ravel() for each in scores.values()]))
    assert info["sparsity"] == 0.5 and info["layers"]["fc1"] != 0.5
    for path, each in scores.items():
        kept = graph.model.get_submodule(path).weight.detach().numpy() != 0
        assert np.array_equal(kept, each > limit)


def test_wanda_scores_remove_channels_whose_inputs_are_small() -> None:
    graph = mlp_graph()
    with torch.no_grad():
        graph.model.fc1.weight.fill_(1.0)[:, 4:] = 3.0
        graph.model.fc1.weight[8:] = torch.tensor([3.0] * 4 + [1.0] * 4)
        graph.model.fc1.bias.zero_()
        graph.model.fc2.weight.fill_(0.1)
    x = torch.ones(10, 8)
    x[:, 4:] = 0.0  # what rows 8 and on have large weights for is what comes
    prune(graph, [x], method="wanda", granularity="channel", target_modules=["fc1"])
    assert graph.model.fc1.weight.tolist() == [[3.0] * 4 + [1.0] * 4] * 8


# -- SparseGPT, each inverse made anew -------------------------------------------------------


def sparsegpt_slowly(
    weight: np.ndarray, hessian: np.ndarray, width: int, choose: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Column by column: optimal brain surgeon with the inverse of H over the columns not yet done.

    What goes is chosen for `width` columns at a time, `choose(scores)` of the weights by then.
    """
    w, keep = weight.copy(), np.ones(weight.shape, dtype=bool)
    columns = range(w.shape[1])
    inverses = [np.linalg.inv(hessian[j:, j:]) for j in columns]
    for j in columns:
        if j % width == 0:
            now = slice(j, j + width)
            scale = np.array([inverses[i][0, 0] for i in columns[now]])
            keep[:, now] = choose(w[:, now] ** 2 / scale, j)
        for row in np.flatnonzero(~keep[:, j]):
            w[row, j:] -= w[row, j] / inverses[j][0, 0] * inverses[j][0]
            w[row, j] = 0.0
    return w, keep


def lowest_of_all(scores: np.ndarray, share: float, before: int) -> np.ndarray:
    """What stays without the lowest, so many that `share` of all columns up to here has gone."""
    rows, columns = scores.shape
    wanted = round(share * rows * (before + columns)) - round(share * rows * before)
    keep = np.ones(rows * columns, dtype=bool)
    keep[np.argsort(scores.ravel(), kind="stable")[:wanted]] = False
    return keep.reshape(scores.shape)


def two_of_four(scores: np.ndarray, before: int) -> np.ndarray:
    keep = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(keep, np.argsort(-scores, axis=1)[:, :2], True, axis=1)
    return keep


def case(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mixed = torch.randn(columns, columns, generator=generator, dtype=torch.float64)
    x = torch.randn(3 * columns, columns, generator=generator, dtype=torch.float64) @ mixed
    weight = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return weight, x.T @ x


def slowly_damped(hessian: Tensor) -> np.ndarray:
    return hessian.numpy() + 0.01 * hessian.diagonal().mean().item() * np.eye(len(hessian))


@pytest.mark.parametrize(  # within one block of columns, and over two
    "columns", [24, pytest.param(150, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("share", [0.5, 0.3])
def test_sparsegpt_equals_the_surgeon_with_every_inverse_made_anew(
    columns: int, share: float
) -> None:
    weight, hessian = case(5, columns)
    full = torch.ones_like(weight, dtype=torch.bool)
    values, keep = pruned_with_feedback(weight, hessian, full, PruningChoice(share), 0.01)
    slow, stays = sparsegpt_slowly(
        weight.numpy(), slowly_damped(hessian), 128, lambda s, j: lowest_of_all(s, share, j)
    )
    assert np.array_equal(keep.numpy(), stays)
    assert int((~keep).sum()) == round(share * weight.numel())
    np.testing.assert_allclose(values.numpy(), slow, rtol=1e-8, atol=1e-9)


def test_sparsegpt_of_two_of_four_equals_the_slow_one_too() -> None:
    weight, hessian = case(4, 136)
    full = torch.ones_like(weight, dtype=torch.bool)
    values, keep = pruned_with_feedback(
        weight, hessian, full, PruningChoice(0.5, pair=(2, 4)), 0.01
    )
    slow, stays = sparsegpt_slowly(weight.numpy(), slowly_damped(hessian), 4, two_of_four)
    assert np.array_equal(keep.numpy(), stays)
    np.testing.assert_allclose(values.numpy(), slow, rtol=1e-8, atol=1e-9)


def test_sparsegpt_loses_less_of_the_output_than_wanda_and_that_less_than_magnitudes() -> None:
    torch.manual_seed(0)
    layer, mixed = nn.Linear(32, 16, bias=False), torch.randn(32, 32)
    mixed *= torch.linspace(0.1, 2.0, 32)
    x = torch.randn(200, 32) @ mixed
    graph = MaseGraph(nn.Sequential(layer).eval(), dummy_in=torch.randn(2, 32))
    expected, errors = layer(x).detach(), {}
    for method in ("sparsegpt", "wanda", "l1-norm"):
        pruned = copy.deepcopy(graph)
        assert prune(pruned, [x[:100], x[100:]], method=method)["sparsity"] == 0.5
        errors[method] = (pruned.model(x).detach() - expected).norm().item()
    assert errors["sparsegpt"] < 0.75 * errors["wanda"] < 0.75 * errors["l1-norm"]


def test_sparsegpt_of_a_grouped_convolution_prunes_each_group_by_its_own_inputs() -> None:
    torch.manual_seed(0)
    layer, batches = nn.Conv2d(8, 4, 3, groups=2, bias=False), batches_of(4, 8, 6, 6)
    whole = MaseGraph(nn.Sequential(layer).eval(), dummy_in=batches[0])
    prune(whole, batches, method="sparsegpt", granularity="2:4")
    for group in range(2):
        half = nn.Conv2d(4, 2, 3, bias=False)
        half.weight = nn.Parameter(layer.weight.detach()[2 * group : 2 * group + 2].clone())
        inputs = [x[:, 4 * group : 4 * group + 4].contiguous() for x in batches]
        alone = MaseGraph(nn.Sequential(half).eval(), dummy_in=inputs[0])
        prune(alone, inputs, method="sparsegpt", granularity="2:4")
        part = whole.model.get_submodule("0").weight[2 * group : 2 * group + 2]
        torch.testing.assert_close(part, alone.model.get_submodule("0").weight)
        assert (part != 0).sum(1).unique().tolist() == [2]  # of four channels, at every place


# -- in a model ------------------------------------------------------------------------------


def test_sparsegpt_leaves_the_users_model_and_its_mode_alone() -> None:
    user = mlp()
    graph = MaseGraph(user, dummy_in={"x": torch.randn(5, 8)})
    graph.model.train()
    before = {n: p.detach().clone() for n, p in user.named_parameters()}
    prune(graph, batches_of(30, 8), method="sparsegpt")
    assert all(torch.equal(p, before[n]) for n, p in user.named_parameters())
    assert graph.model.fc1.training and isinstance(graph.model.fc1, Masked)


def test_a_weight_that_others_share_gets_values_of_its_own_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.table(x))

    torch.manual_seed(0)
    ids = torch.arange(12).reshape(2, 6)
    graph = MaseGraph(Tied().eval(), dummy_in={"x": ids})
    table = graph.model.table.weight.detach().clone()
    prune(graph, [ids], method="sparsegpt")
    assert torch.equal(graph.model.table.weight, table)
    assert "'head.weight' is no longer shared with 'table.weight'" in caplog.text


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_pruning_again_keeps_what_is_pruned(method: str) -> None:
    graph, batches = mlp_graph(), batches_of(30, 8)
    prune(graph, batches, method="l1-norm", sparsity=0.25)
    first = graph.model.fc2.weight != 0
    prune(graph, batches, method=method, sparsity=0.5)
    second = graph.model.fc2.weight != 0
    assert not (second & ~first).any() and second.float().mean() == 0.5


def test_a_layer_called_twice_is_pruned_by_the_inputs_of_both_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.fc(x) * torch.linspace(0, 50, 8))

    torch.manual_seed(0)
    graph, batches = MaseGraph(Twice().eval(), dummy_in=torch.randn(2, 8)), batches_of(6, 8)
    weight = graph.model.fc.weight.detach().clone()
    x = inputs_of(copy.deepcopy(graph.model), "fc", batches)
    assert len(x) == 36
    prune(graph, batches, method="wanda")
    keep = wanda_by_definition(weight.double().numpy(), x, 0.5)
    assert np.array_equal(graph.model.fc.weight.detach().numpy() != 0, keep)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Any) -> None:
    whole, batches = mlp_graph(), batches_of(30, 8)
    prune(copy.deepcopy(whole), batches, method="sparsegpt", keep=str(tmp_path))
    (folder,) = tmp_path.iterdir()
    files = sorted(folder.iterdir())
    stamps = {file: file.stat().st_mtime_ns for file in files[:2]}
    files[2].unlink()
    again = copy.deepcopy(whole)
    prune(again, batches, method="sparsegpt", keep=str(tmp_path))
    prune(whole, batches, method="sparsegpt")
    for path in ("fc1", "fc2", "head"):
        mine, other = (g.model.get_submodule(path) for g in (again, whole))
        assert torch.equal(mine.weight, other.weight)
        assert torch.equal(mine.weight_mask, other.weight_mask)
    assert len(files) == 3 and {f: f.stat().st_mtime_ns for f in stamps} == stamps


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_masks_survive_formats_copies_and_checkpoints(method: str, tmp_path: Any) -> None:
    graph, batch = bert_graph(), bert_batch()
    prune(graph, [batch], method=method, target_modules=["intermediate.dense", "query"])
    passes.quantize_transform_pass(graph, QUANTIZE)
    layer = "bert.encoder.layer.0.intermediate.dense"
    mask = graph.model.get_submodule(layer).weight_mask
    assert mask.float().mean() == 0.5
    graph.export(tmp_path / "graph")
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(loaded.model.get_submodule(layer).weight_mask, mask)
    assert torch.equal(logits(loaded.model), logits(graph.model))
    again = copy.deepcopy(loaded)
    assert not again.model.get_submodule(layer).weight[~mask].any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "wanda"}, "method 'wanda' looks at what layers are given: give batches"),
        ({"method": "sparsegpt", "scope": "global"}, "prunes layer by layer; scope must be"),
        ({"method": "sparsegpt", "granularity": "row"}, "granularity must be 'elementwise' or N:M"),
        (
            {"granularity": "row", "scope": "row"},
            "scope 'row' has no meaning for granularity",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prune(mlp_graph(), None, **given)


def test_layers_without_such_inputs_are_named_before_any_is_pruned() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ConvTranspose2d(4, 4, 2)).eval()
    graph = MaseGraph(model, dummy_in=torch.randn(1, 4, 4, 4))
    with pytest.raises(PassError, match=r"'wanda' is not defined for '1' \(ConvTranspose2d\)"):
        prune(graph, batches_of(1, 4, 4, 4), method="wanda")
    assert type(graph.model.get_submodule("0")) is nn.Conv2d


def test_data_that_does_not_fit_is_named() -> None:
    with pytest.raises(ConfigError, match=r"prune\.batches: expected an iterable of batches"):
        prune(mlp_graph(), torch.randn(3, 8), method="wanda")


GROUPS_OF_8 = {
    "name": "scale_integer",
    "weight_width": 3,
    "weight_granularity": "group",
    "weight_group_size": 8,
    "data_in_width": "NA",
    "bias_width": "NA",
}


@pytest.mark.parametrize("config", [GROUPS_OF_8, {**GROUPS_OF_8, "weight_granularity": "channel"}])
def test_rounding_with_feedback_leaves_pruned_weights_zero_and_counts_them_so(
    config: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(16, 24)
    graph = MaseGraph(nn.Sequential(layer).eval(), dummy_in=torch.randn(2, 16))
    x = torch.randn(200, 16) @ torch.randn(16, 16)
    prune(graph, [x], method="wanda", granularity="2:4")
    mask = graph.model.get_submodule("0").weight_mask
    expected = graph.model(x).detach()
    passes.quantize_transform_pass(graph, {"linear": {"config": config}})
    plain = (graph.model(x).detach() - expected).square().sum().item()
    _, info = passes.gptq_transform_pass(graph, {"data": [x], "rows": "equal"})
    made = graph.model.get_submodule("0")
    assert not made._parameters["weight"][~mask].any()
    rounded = (graph.model(x).detach() - expected).square().sum().item()
    gained = info["layers"][0]["rounded"] - info["layers"][0]["plain"]
    assert gained == pytest.approx(10 * np.log10(plain / rounded), abs=0.01) and gained > 1


ROUNDINGS = {
    "gptq": passes.gptq_transform_pass,
    "learned": lambda graph, args: passes.learned_rounding_transform_pass(
        graph, {**args, "steps": 8}
    ),
}


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_pruned_model_is_rounded_layer_after_layer_and_trains_on(rounding: str) -> None:
    graph, batches = mlp_graph(), batches_of(40, 8)
    prune(graph, batches, method="sparsegpt")
    masks = {p: graph.model.get_submodule(p).weight_mask for p in ("fc1", "fc2", "head")}
    config = {**GROUPS_OF_8, "weight_granularity": "channel"}
    passes.quantize_transform_pass(graph, {"linear": {"config": config}})
    ROUNDINGS[rounding](graph, {"data": batches})
    for path, mask in masks.items():
        layer = graph.model.get_submodule(path)
        assert torch.equal(layer.weight_mask, mask) and not layer.weight[~mask].any()
        stored = layer._parameters["weight"]
        assert stored.requires_grad and not stored[~mask].any()
