"""Mixtures of experts as one layer: split along the tokens, or along the experts."""

import functools

import pytest
import torch
import transformers
from distributed.models import two
from passes.graphs import annotate
from torch import nn
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from chop import MaseGraph
from chop.distributed.plan import fixed_plan, make_plan
from chop.distributed.program import program_of
from chop.distributed.verify_plan import PlanRun, verify_plans
from chop.ir.expert_mixtures import EXPERTS, WEIGHTS, is_mixture, mixture_ops, own_experts

TOKENS, WIDTH, COUNT, CHOSEN = 8, 16, 4, 2


def config(**settings):
    sizes = {"hidden_size": WIDTH, "intermediate_size": 32, "num_local_experts": COUNT}
    return transformers.MixtralConfig(**sizes, num_experts_per_tok=CHOSEN, **settings)


class Mixture(nn.Module):
    """A block of Mixtral behind a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.block = nn.Linear(WIDTH, WIDTH), MixtralSparseMoeBlock(config())
        for parameter in self.block.parameters():
            nn.init.normal_(parameter, std=0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.fc(x)) + x


@functools.cache
def mixture():
    torch.manual_seed(0)
    inputs = {"x": torch.randn(2, TOKENS // 2, WIDTH)}
    model = Mixture().eval()
    graph = MaseGraph(model, dummy_in=inputs, custom_ops=mixture_ops(model))
    return annotate(graph, inputs), inputs


def layer_of(graph):
    return next(v for v in program_of(graph).values if v.op.name == "expert_mixture")


def test_a_mixture_is_split_along_tokens_or_experts():
    layer = layer_of(mixture()[0])
    assert {s.name for s in layer.layouts(2)} == {"replicate", "split 0", EXPERTS}
    assert {s.name for s in layer.layouts(8)} == {"replicate", "split 0"}  # 4 experts
    products = TOKENS * CHOSEN * 3 * 32 * WIDTH  # gate, up and down
    assert layer.flops() == 2 * products


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_parts_of_a_mixture_add_up_to_its_result(parts):
    layer = mixture()[0].model.get_submodule("block.experts")
    tokens = torch.randn(TOKENS, WIDTH)
    factors, chosen = torch.rand(TOKENS, COUNT).topk(CHOSEN)
    size = COUNT // parts
    weights = [getattr(layer, name).split(size) for name in WEIGHTS]
    total = sum(
        own_experts(layer, tokens, chosen, factors, (weights[0][i], weights[1][i]), i * size)
        for i in range(parts)
    )
    torch.testing.assert_close(total, layer(tokens, chosen, factors))


def test_experts_without_a_token_have_a_gradient_of_zeros():
    layer = mixture()[0].model.get_submodule("block.experts")
    weights = tuple(getattr(layer, name).detach().clone().requires_grad_() for name in WEIGHTS)
    chosen = torch.zeros(TOKENS, 1, dtype=torch.long)
    tokens = torch.randn(TOKENS, WIDTH)
    own_experts(layer, tokens, chosen, torch.ones(TOKENS, 1), weights, 0).sum().backward()
    assert all(w.grad[0].abs().sum() > 0 and not w.grad[1:].any() for w in weights)


def test_other_layers_are_no_mixtures():
    class Biased(nn.Module):
        has_bias = True

        def __init__(self) -> None:
            super().__init__()
            self.gate_up_proj = self.down_proj = nn.Parameter(torch.ones(2, 2, 2))

    assert not is_mixture(nn.Linear(2, 2)) and not is_mixture(Biased())
    assert mixture_ops(nn.Linear(2, 2)) == {"modules": {}}


def split_experts(graph):
    """A plan by hand: experts in parts, everything else whole."""
    chosen = layer_of(graph).layouts(2)

    def pick(value):
        if value.op.name == "expert_mixture":
            return next(s for s in chosen if s.name == EXPERTS)
        is_expert = value.is_parameter and value.name.endswith(WEIGHTS)
        return next((s for s in value.layouts(2) if is_expert and s.result == "S0"), None)

    return pick


def test_a_small_memory_splits_the_experts():
    graph, _ = mixture()
    whole = sum(p.numel() * 4 for p in graph.model.parameters())
    by_hand = fixed_plan(graph, two(), split_experts(graph), training=False)
    experts = sum(p.numel() * 4 for p in graph.model.get_submodule("block.experts").parameters())
    assert by_hand.cost.parameter_bytes == whole - experts // 2
    assert by_hand.cost.collectives == {"all_reduce": 1}
    slow = two(bandwidth=(1e6,), memory=by_hand.cost.memory_bytes)
    by_hand = fixed_plan(graph, slow, split_experts(graph), training=False)
    plan = make_plan(graph, slow, training=False)
    assert plan.strategies[layer_of(graph).name][0].name == EXPERTS
    assert plan.cost.step_seconds <= by_hand.cost.step_seconds


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2,), (2, 2)], ids=str)
def test_mixtures_compute_the_same_on_real_processes(shape):
    graph, inputs = mixture()
    mesh = two(shape=shape)
    plans = [fixed_plan(graph, mesh, split_experts(graph)), make_plan(graph, mesh)]
    for plan, result in zip(
        plans, verify_plans([PlanRun(graph, p, inputs) for p in plans]), strict=True
    ):
        assert result.is_equal, result
        assert set(result.parameter_bytes) == {plan.cost.parameter_bytes}
