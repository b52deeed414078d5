"""Masks: how many zeros, which ones, and that nothing brings them back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from compression_models import (
    QUANTIZE,
    annotated,
    bert_batch,
    bert_graph,
    logits,
    mlp_graph,
)
from covering import slow_unless
from nn.quantized.quantized_cases import config_of
from torch import Tensor, nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ConfigError, PassError
from chop.nn.modules import Masked
from chop.nn.quantized import from_float
from chop.nn.quantizers import FORMATS, Integer
from chop.passes.graph.transforms.prune import GradientScores
from chop.passes.prune.importance import METHODS
from chop.passes.prune.prunable_layers import add_mask, remove_mask

pytestmark = pytest.mark.share(2)

DOCUMENTED = {
    "weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
    "activation": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
}


def weight_args(**fields: Any) -> dict[str, Any]:
    return {"weight": {"sparsity": 0.5, **fields}}


def prune(graph: MaseGraph, **fields: Any) -> dict[str, Any]:
    extra = {key: fields.pop(key) for key in ("batches", "scores", "seed", "loss") if key in fields}
    return passes.prune_transform_pass(graph, weight_args(**fields) | extra)[1]


def zeros(graph: MaseGraph) -> dict[str, Tensor]:
    return {n: m.weight == 0 for n, m in graph.model.named_modules() if isinstance(m, Masked)}


def same_zeros(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def conv_graph() -> MaseGraph:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    return MaseGraph(model, dummy_in={"input": torch.randn(2, 4, 8, 8)})


def train(graph: MaseGraph, optimizer: torch.optim.Optimizer | None = None, steps: int = 3) -> None:
    optimizer = optimizer or torch.optim.AdamW(graph.model.parameters(), lr=0.01, weight_decay=0.1)
    graph.model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        graph.model(**bert_batch())["loss"].backward()
        optimizer.step()
    graph.model.eval()


# -- which and how many ----------------------------------------------------------------------


def test_the_documented_config_prunes_weights_and_activations() -> None:
    graph = bert_graph()
    graph, info = passes.prune_transform_pass(graph, DOCUMENTED)
    assert info["sparsity"] == pytest.approx(0.5, abs=1e-3)
    assert len(info["activations"]) == len(info["layers"]) == 14
    assert all(share >= 0.5 for share in info["activations"].values())


SCOPES = [
    (method, scope)
    for method, each in METHODS.items()
    for scope in ("row", "local", "global")
    if not (each.makes_up and scope == "global")
]


SPARSITIES = (0.75, 0.25, 0.0)
TURNS = [(*row, SPARSITIES[k % 3]) for k, row in enumerate(SCOPES)]
"""Every method in every scope; the sparsities take turns, and `make slow` tries all of them."""
ALL = [(*row, sparsity) for row in SCOPES for sparsity in SPARSITIES]


@pytest.mark.parametrize(("method", "scope", "sparsity"), slow_unless(ALL, TURNS.__contains__))
def test_reported_sparsity_is_the_measured_one(method: str, scope: str, sparsity: float) -> None:
    graph = mlp_graph()
    given = {} if METHODS[method].product else {"batches": [torch.randn(40, 8)]}
    graph.model(torch.randn(4, 8)).square().sum().backward()
    info = prune(graph, method=method, scope=scope, sparsity=sparsity, **given)
    weights = [graph.model.get_submodule(path).weight for path in info["layers"]]
    counted = sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
    assert info["sparsity"] == counted == pytest.approx(sparsity, abs=0.01)


def test_local_scope_prunes_each_layer_and_global_the_smallest_of_all() -> None:
    small = mlp_graph()
    with torch.no_grad():
        small.model.fc1.weight.mul_(0.01)
    local, whole = copy.deepcopy(small), small
    assert set(prune(local)["layers"].values()) == {0.5}
    assert prune(whole, sparsity=0.3, scope="global")["layers"]["fc1"] > 0.8


def test_l1_norm_prunes_the_smallest_magnitudes() -> None:
    graph = mlp_graph()
    before = graph.model.fc1.weight.detach().abs().clone()
    prune(graph, sparsity=0.25)
    gone = graph.model.fc1.weight == 0
    assert before[gone].max() <= before[~gone].min()


def test_equal_weights_are_pruned_to_the_exact_share() -> None:
    graph = mlp_graph()
    nn.init.ones_(graph.model.fc1.weight)
    assert prune(graph, sparsity=0.3)["layers"]["fc1"] == round(0.3 * 128) / 128


def test_random_choices_depend_on_the_seed_alone() -> None:
    first, same, other = mlp_graph(), mlp_graph(), mlp_graph()
    prune(first, method="random", seed=3)
    torch.rand(7)
    prune(same, method="random", seed=3)
    prune(other, method="random", seed=4)
    assert same_zeros(zeros(first), zeros(same))
    assert not same_zeros(zeros(first), zeros(other))


def test_taylor_prunes_what_moves_the_loss_least() -> None:
    graph = mlp_graph()
    x = torch.randn(6, 8)
    graph.model(x).square().sum().backward()
    weight = graph.model.fc2.weight
    wanted = (weight * weight.grad).abs().detach()
    prune(graph, method="taylor")
    gone = graph.model.fc2.weight == 0
    assert wanted[gone].max() <= wanted[~gone].min()


def test_movement_prunes_what_training_drives_to_zero() -> None:
    graph = mlp_graph()
    weight = graph.model.fc1.weight
    scores = GradientScores(graph.model, "movement")
    for _ in range(3):
        graph.model.zero_grad()
        graph.model(torch.randn(6, 8)).square().sum().backward()
        scores.update()
    kept = scores.of(weight)
    prune(graph, method="movement", scores=scores)
    gone = graph.model.fc1.weight == 0
    assert kept[gone].max() <= kept[~gone].min()


def test_scores_over_batches_leave_model_and_gradients_alone() -> None:
    graph, batch = bert_graph(), bert_batch()
    before = logits(graph.model)
    info = prune(graph, method="taylor", batches=[batch, batch], sparsity=0.0)
    assert info["sparsity"] == 0.0
    assert torch.equal(logits(graph.model), before)
    assert all(p.grad is None for p in graph.model.parameters())


def test_target_modules_choose_the_layers() -> None:
    graph = bert_graph()
    prune(graph, target_modules=["query", r".*intermediate\.dense"])
    assert len(zeros(graph)) == 4


# -- granularities ---------------------------------------------------------------------------


def test_two_of_four_keeps_the_two_largest_of_every_four() -> None:
    graph = mlp_graph()
    before = graph.model.fc1.weight.detach().abs().reshape(-1, 4)
    info = passes.prune_transform_pass(graph, {"weight": {"granularity": "2:4"}})[1]
    kept = (graph.model.fc1.weight != 0).reshape(-1, 4)
    assert info["sparsity"] == 0.5 and (kept.sum(1) == 2).all()
    assert (before.masked_fill(~kept, 9).amin(1) >= before.masked_fill(kept, 0).amax(1)).all()


def test_n_of_m_groups_the_input_channels_of_a_convolution() -> None:
    graph = conv_graph()
    passes.prune_transform_pass(graph, {"weight": {"granularity": "1:4"}})
    groups = (graph.model.get_submodule("0").weight != 0).movedim(1, -1).reshape(-1, 4)
    assert (groups.sum(1) == 1).all()


@pytest.mark.parametrize(
    ("granularity", "block"),
    [("row", (1, 4, 3, 3)), ("column", (8, 1, 3, 3)), ("kernel", (1, 1, 3, 3)), ("block", (2, 2))],
)
def test_blocks_go_as_one(granularity: str, block: tuple[int, ...]) -> None:
    graph = conv_graph()
    prune(graph, granularity=granularity, block_size=[2, 2], target_modules=["0"])
    gone = graph.model.get_submodule("0").weight == 0
    size = (*block, 1, 1)[:4]
    whole = gone.reshape([n for s, b in zip(gone.shape, size, strict=True) for n in (s // b, b)])
    shares = whole.float().mean(dim=(1, 3, 5, 7))
    assert shares.unique().tolist() == [0.0, 1.0] and gone.float().mean() == 0.5


# -- zeros stay ------------------------------------------------------------------------------


def test_training_keeps_the_zeros_and_moves_the_rest() -> None:
    graph = bert_graph()
    prune(graph)
    before = zeros(graph)
    weight = graph.model.classifier.weight.detach().clone()
    train(graph)
    assert same_zeros(zeros(graph), before)
    assert not torch.equal(graph.model.classifier.weight, weight)


def test_momentum_from_before_pruning_brings_nothing_back(tmp_path: Any) -> None:
    graph = bert_graph()
    optimizer = torch.optim.SGD(graph.model.parameters(), lr=0.1, momentum=0.9)
    train(graph, optimizer)
    prune(graph)
    before = zeros(graph)
    graph.model.train()
    optimizer.step()
    assert same_zeros(zeros(graph), before)
    graph.export(tmp_path / "pruned")
    saved = MaseGraph.from_checkpoint(tmp_path / "pruned").model.state_dict()
    assert all((saved[f"{path}.weight"][gone] == 0).all() for path, gone in before.items())


def test_pruning_again_adds_to_what_is_pruned() -> None:
    graph = mlp_graph()
    prune(graph, method="random", sparsity=0.3)
    before = zeros(graph)
    info = prune(graph, method="random", sparsity=0.6, seed=1)
    assert info["sparsity"] == pytest.approx(0.6, abs=0.01)
    assert all((zeros(graph)[path] | ~gone).all() for path, gone in before.items())
    assert prune(graph, sparsity=0.1)["sparsity"] == info["sparsity"]


@pytest.mark.parametrize("first", ["quantize", "prune"])
def test_quantised_and_pruned_graphs_are_saved_loaded_and_copied(tmp_path: Any, first: str) -> None:
    graph = bert_graph()
    steps = [
        lambda: passes.quantize_transform_pass(graph, QUANTIZE),
        lambda: prune(graph),
    ]
    for step in steps if first == "quantize" else reversed(steps):
        step()
    wanted, masks = logits(graph.model), zeros(graph)
    assert type(graph.model.classifier).__name__ == "MaskedLinearInteger"
    graph.export(tmp_path / "both")
    loaded = MaseGraph.from_checkpoint(tmp_path / "both")
    copies = [loaded, copy.deepcopy(graph)]
    models = [*(g.model for g in copies), pickle.loads(pickle.dumps(graph.model))]
    assert all(torch.equal(logits(model), wanted) for model in models)
    train(loaded)
    assert same_zeros(zeros(loaded), masks)


def test_both_orders_give_the_same_model() -> None:
    first, second = mlp_graph(), mlp_graph()
    passes.quantize_transform_pass(first, QUANTIZE)
    prune(first)
    prune(second)
    passes.quantize_transform_pass(second, QUANTIZE)
    x = torch.randn(3, 8)
    assert type(first.model.fc1) is type(second.model.fc1)
    assert torch.equal(first.model(x), second.model(x))


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "bypass"])
def test_zeros_survive_every_number_format(name: str) -> None:
    graph = mlp_graph()
    prune(graph, target_modules=["fc1"])
    passes.quantize_transform_pass(graph, {"by": "name", "fc1": {"config": config_of(name)}})
    layer = graph.model.fc1
    assert (layer.quantized_parameters()[0][~layer.weight_mask] == 0).all()


def test_a_pruned_layer_changes_its_format_and_keeps_its_zeros() -> None:
    graph = mlp_graph()
    passes.quantize_transform_pass(graph, QUANTIZE)
    prune(graph)
    before = zeros(graph)
    passes.quantize_transform_pass(graph, {"linear": {"config": {"name": "mxint"}}})
    assert same_zeros(zeros(graph), before)


def test_saved_weights_hold_the_zeros(tmp_path: Any) -> None:
    graph = mlp_graph()
    prune(graph)
    state = graph.model.state_dict()
    assert set(state) == {
        *mlp_graph().model.state_dict(),
        *(f"{n}.weight_mask" for n in zeros(graph)),
    }
    assert (state["fc1.weight"] == 0).float().mean() == 0.5


def test_the_parameter_stays_the_one_an_optimiser_holds() -> None:
    graph = mlp_graph()
    before = dict(graph.model.named_parameters())
    prune(graph)
    after = dict(graph.model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())


# -- activations -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["random", "l1-norm", "l2-norm"])
def test_activations_lose_their_share_in_every_sample(method: str) -> None:
    graph, x = mlp_graph(), torch.randn(5, 8)
    passes.prune_transform_pass(graph, {"activation": {"sparsity": 0.5, "method": method}})
    mask = graph.modules["fc1_activation_mask"]
    assert ((mask(x) == 0).sum(1) == 4).all()
    assert torch.equal(mask(x)[:1], mask(x[:1]))


def test_small_activations_are_pruned_and_large_ones_pass() -> None:
    graph = mlp_graph()
    passes.prune_transform_pass(graph, {"activation": {"sparsity": 0.5, "target_modules": ["fc1"]}})
    x = torch.tensor([[1.0, -2, 3, -4, 5, -6, 7, -8]])
    wanted = torch.tensor([[0.0, 0, 0, 0, 5, -6, 7, -8]])
    assert torch.equal(graph.modules["fc1_activation_mask"](x), wanted)


def test_global_activations_share_one_threshold() -> None:
    graph = mlp_graph()
    args = {"activation": {"sparsity": 0.6, "scope": "global"}}
    graph, info = passes.prune_transform_pass(graph, args)
    limits = {float(m.threshold) for n, m in graph.modules.items() if n.endswith("_mask")}
    sizes = {"fc1": 8, "fc2": 16, "head": 12}
    shares = info["activations"]
    measured = sum(shares[f"{n}_activation_mask"] * s for n, s in sizes.items()) / sum(
        sizes.values()
    )
    assert len(limits) == 1 and measured == pytest.approx(0.6, abs=0.02)


def test_pruning_activations_again_replaces_the_masks() -> None:
    graph = mlp_graph()
    passes.prune_transform_pass(graph, {"activation": {"sparsity": 0.25}})
    nodes = [n.name for n in graph.nodes]
    passes.prune_transform_pass(graph, {"activation": {"sparsity": 0.75}})
    assert len(graph.nodes) == len(nodes)
    assert graph.modules["fc1_activation_mask"].sparsity == 0.75


def test_gradients_flow_through_pruned_activations() -> None:
    graph, x = mlp_graph(), torch.randn(2, 8, requires_grad=True)
    passes.prune_transform_pass(graph, {"activation": {"sparsity": 0.5, "target_modules": ["fc1"]}})
    graph.model(x).sum().backward()
    assert ((x.grad == 0).sum(1) == 4).all()


# -- metadata, detaching ---------------------------------------------------------------------


def test_metadata_tells_sparsity_and_masks() -> None:
    graph = annotated(mlp_graph())
    graph, _ = passes.prune_transform_pass(graph, DOCUMENTED)
    passes.verify_metadata_analysis_pass(graph)
    software = {str(n.target): n.meta["mase"]["software"] for n in graph.nodes}
    assert software["fc1"]["sparsity"] == {"weight": 0.5}
    assert software["fc1"]["masks"] == {"weight": "fc1.weight_mask"}
    assert software["fc1_activation_mask"]["sparsity"]["activation"] == 0.5


@pytest.mark.parametrize("is_quantized", [False, True])
def test_detaching_makes_the_zeros_permanent_and_restores_the_classes(is_quantized: bool) -> None:
    graph = annotated(bert_graph())
    if is_quantized:
        passes.quantize_transform_pass(graph, QUANTIZE)
    before = {n: type(m) for n, m in graph.modules.items()}
    passes.prune_transform_pass(graph, weight_args())
    wanted, gone = logits(graph.model), zeros(graph)
    graph, info = passes.prune_detach_hook_transform_pass(graph)
    assert {n: type(m) for n, m in graph.modules.items()} == before
    assert torch.equal(logits(graph.model), wanted) and set(info["detached"]) == set(gone)
    assert not any("mask" in name for name in graph.model.state_dict())
    passes.verify_metadata_analysis_pass(graph)
    share = passes.calculate_sparsity_analysis_pass(graph)[1]["sparsity"]
    assert share == pytest.approx(0.5, abs=1e-3)


def test_detaching_takes_activation_masks_out_when_asked() -> None:
    graph = mlp_graph()
    nodes = [n.name for n in graph.nodes]
    passes.prune_transform_pass(graph, DOCUMENTED)
    passes.prune_detach_hook_transform_pass(graph, {"activation": True})
    assert [n.name for n in graph.nodes] == nodes


# -- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "prune: nothing to prune: give 'weight', 'activation' or both"),
        ({"weight": {}}, "prune.weight: key 'sparsity' is missing"),
        (
            weight_args(sparsity=1.2),
            "prune.weight: sparsity must be at least 0 and below 1, got 1.2",
        ),
        (weight_args(sparsity=-0.1), "sparsity must be at least 0 and below 1, got -0.1"),
        (weight_args(method="l1_norm"), "unknown method 'l1_norm'. Did you mean 'l1-norm'"),
        (weight_args(scope="everywhere"), "prune.weight.scope: 'everywhere' .* is not allowed"),
        (weight_args(granularity="elemntwise"), "unknown 'elemntwise'. Did you mean 'elementwise'"),
        (weight_args(granularity="4:2"), "'4:2' must keep N of M with 0 < N < M"),
        (weight_args(granularity="1:4"), "1:4 prunes 0.75, but sparsity is 0.5"),
        (weight_args(granularity="2:4", scope="global"), "scope 'global' has no meaning for 2:4"),
        (weight_args(block_size=[0, 4]), r"block_size must be at least 1 each, got \[0, 4\]"),
        (weight_args(target_modules=["fc9"]), "target_modules: 'fc9' matches no module"),
        (weight_args(sparsty=0.5), "unknown key 'sparsty'. Did you mean 'sparsity'"),
        ({"activation": {"sparsity": 1.0}}, "prune.activation: sparsity must be at least 0"),
        (
            {"activation": {"sparsity": 0.5, "method": "taylor"}},
            "prune.activation: method: unknown method 'taylor'",
        ),
        (
            {"activation": {"sparsity": 0.5, "method": "random", "scope": "global"}},
            "scope 'global' has no meaning for random activations",
        ),
    ],
)
def test_bad_arguments_are_named(given: dict[str, Any], message: str) -> None:
    graph = mlp_graph()
    before = {n: type(m) for n, m in graph.modules.items()}
    with pytest.raises(ConfigError, match=message):
        passes.prune_transform_pass(graph, given)
    assert {n: type(m) for n, m in graph.modules.items()} == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"granularity": "2:5", "sparsity": 0.6},
            "2:5 needs a multiple of 5 inputs, and 'fc1' has 8",
        ),
        (
            {"granularity": "block", "block_size": [3, 4]},
            r"blocks of \[3, 4\] do not tile .* 'fc1'",
        ),
        ({"method": "taylor"}, "method 'taylor' needs gradients and 'fc1' has none"),
    ],
)
def test_what_does_not_fit_the_model_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PassError, match=message):
        prune(mlp_graph(), **given)


def test_a_model_without_a_loss_says_so() -> None:
    with pytest.raises(PassError, match=r"the model gives no loss\. Give one: loss="):
        prune(mlp_graph(), method="taylor", batches=[torch.randn(2, 8)])
    info = prune(
        mlp_graph(),
        method="taylor",
        batches=[torch.randn(2, 8)],
        loss=lambda output, batch: output.sum(),
    )
    assert info["sparsity"] == 0.5


def test_gradient_scores_of_a_method_without_gradients_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'l1-norm' takes no gradients\. Allowed: .*taylor"):
        GradientScores(mlp_graph().model, "l1-norm")


def test_a_graph_without_weights_is_an_error() -> None:
    graph = MaseGraph(nn.ReLU(), dummy_in={"input": torch.randn(2)})
    with pytest.raises(PassError, match="no linear or convolution layer"):
        prune(graph)


def test_adapters_are_fused_before_pruning() -> None:
    graph, _ = passes.insert_lora_adapter_transform_pass(mlp_graph(), {"rank": 2})
    with pytest.raises(PassError, match=r"'fc1' has an adapter\. Run fuse_lora_weights"):
        prune(graph)


def test_adapters_on_a_pruned_layer_keep_its_zeros_when_fused() -> None:
    graph = mlp_graph()
    prune(graph)
    before = zeros(graph)
    graph, _ = passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    nn.init.normal_(graph.model.fc1.lora_B.weight)
    graph, _ = passes.fuse_lora_weights_transform_pass(graph)
    assert same_zeros(zeros(graph), before)


def test_zeros_are_told_of_the_layers_that_can_be_pruned_and_of_the_whole_model() -> None:
    model = nn.Sequential(nn.Embedding(100, 4), nn.Linear(4, 4, bias=False))
    graph = MaseGraph(model, dummy_in=torch.zeros(1, 2, dtype=torch.long))
    weight = {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}
    _, info = passes.prune_transform_pass(graph, {"weight": weight})
    assert info["sparsity"] == 0.5
    assert info["model_sparsity"] == 8 / 416


def test_formats_set_by_hand_survive_pruning() -> None:
    config = {"name": "integer", "weight_width": 8, "data_in_width": 8}
    layer = from_float(nn.Linear(3, 2), config)
    layer.quantizers = layer.quantizers | {"weight": Integer(4, 1)}
    masked = add_mask(layer, torch.ones(2, 3, dtype=torch.bool))
    assert masked.quantizers["weight"] == remove_mask(masked).quantizers["weight"] == Integer(4, 1)
