"""A compressed graph generates: the tokens of the eager model with the same weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from generating_models import FAMILIES, PAIRS, graph, made, model, prompts, tokens
from torch import Tensor, nn

import chop.passes as passes
from chop import MaseGraph
from chop.kernels import pack, unpack
from chop.nn.quantizers import MXInt

MX8 = {"by": "type", "linear": {"config": {"name": "mxint", "bias_width": "NA"}}}
WEIGHTS = {"by": "type", "linear": {"config": {**MX8["linear"]["config"], "data_in_width": "NA"}}}


def given_to(name: str) -> dict[str, Tensor]:
    return prompts(name, side="right" if name in PAIRS else "left")


def with_weights(name: str, change: Callable[[Tensor], Tensor]) -> Any:
    """The eager model with every linear layer's weight changed.

    Pruning is of the weight itself, which an embedding may share; rounding is of the layer's own.
    """
    other = made(name)
    with torch.no_grad():
        for module in other.modules():
            if isinstance(module, nn.Linear | nn.Conv1d) and change is halved:
                module.weight.copy_(halved(module.weight))
            elif isinstance(module, nn.Linear):
                module.weight = nn.Parameter(change(module.weight))
    return other


def changed(name: str, step: Callable[..., Any], args: dict[str, Any]) -> MaseGraph:
    found, _ = step(copy.deepcopy(graph(name)), args)
    return found


def halved(weight: Tensor) -> Tensor:
    """Without the smaller half of its entries."""
    limit = weight.abs().flatten().kthvalue(weight.numel() // 2).values
    return weight.where(weight.abs() > limit, 0.0)


STEPS: dict[str, tuple[Callable[..., Any], dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "weights in a format": (
        passes.quantize_transform_pass,
        WEIGHTS,
        MXInt(8, block_size=32).quantize,
    ),
    "pruned": (
        passes.prune_transform_pass,
        {"weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}},
        halved,
    ),
    "packed": (
        passes.pack_weights_transform_pass,
        {"format": "mxint8", "embeddings": False},
        lambda weight: unpack(pack(weight, "mxint8")),
    ),
    "adapters": (
        passes.insert_lora_adapter_transform_pass,
        {"rank": 4, "alpha": 1.0, "dropout": 0.0},
        lambda weight: weight,
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_compressed_graph_gives_the_tokens_of_the_model_with_its_weights(step: str) -> None:
    run, args, change = STEPS[step]
    given = given_to("Llama")
    expected = tokens(with_weights("Llama", change).generate, given)
    assert torch.equal(tokens(changed("Llama", run, args).generate, given), expected)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["weights in a format", "pruned", "adapters"])
@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in ("GPT-2", "Mixtral")])
def test_every_family_generates_compressed(name: str, step: str) -> None:
    run, args, change = STEPS[step]
    given = given_to(name)
    expected = tokens(with_weights(name, change).generate, given)
    assert torch.equal(tokens(changed(name, run, args).generate, given), expected)


@pytest.mark.parametrize("name", ["Llama", "T5"])
def test_rounding_each_token_by_itself_gives_the_same_with_a_cache_and_without(name: str) -> None:
    given = given_to(name)
    mg = changed(name, passes.quantize_transform_pass, MX8)
    found = tokens(mg.generate, given)
    assert torch.equal(found, tokens(mg.generate, given, use_cache=False))
    assert not torch.equal(found, tokens(model(name).generate, given)), "it rounds"


def test_a_packed_graph_generates_after_a_round_trip(tmp_path: Path) -> None:
    mg = changed("T5", passes.pack_weights_transform_pass, {"format": "mxint4"})
    given = given_to("T5")
    expected = tokens(mg.generate, given)
    mg.export(tmp_path / "packed")
    loaded = MaseGraph.from_checkpoint(tmp_path / "packed")
    assert torch.equal(tokens(loaded.generate, given), expected)


def test_a_pass_after_generate_is_heard_by_the_next() -> None:
    mg = copy.deepcopy(graph("T5"))
    given = given_to("T5")
    before = tokens(mg.generate, given)
    passes.prune_transform_pass(mg, STEPS["pruned"][1])
    after = tokens(mg.generate, given)
    assert torch.equal(after, tokens(with_weights("T5", halved).generate, given))
    assert not torch.equal(after, before)


def test_metadata_and_clean_up_leave_the_tokens_as_they_are() -> None:
    mg = copy.deepcopy(graph("Llama"))
    given = given_to("Llama")
    for step in (
        passes.init_metadata_analysis_pass,
        passes.add_common_metadata_analysis_pass,
        passes.fold_constants_transform_pass,
        passes.eliminate_common_subexpressions_transform_pass,
        passes.eliminate_dead_code_transform_pass,
    ):
        mg, _ = step(mg)
    assert torch.equal(tokens(mg.generate, given), tokens(model("Llama").generate, given))
