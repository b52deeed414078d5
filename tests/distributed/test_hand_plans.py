"""Hand plans are what their names promise, and no plan of ours is slower."""

import functools

import pytest
import torch
import transformers
from covering import first_and_slow
from distributed.models import SLOW_DEVICES, bert, images, mlp
from passes.graphs import annotate

from chop import MaseGraph
from chop.distributed.hand_plans import HAND_PLANS, comparison_records, hand_plans, tracked_dims
from chop.distributed.mesh import Mesh
from chop.distributed.plan import make_plan
from chop.distributed.program import program_of


def decoder(cls: str, config: str, **settings):
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = getattr(transformers, cls)(getattr(transformers, config)(use_cache=False, **settings))
    ids = torch.zeros(4, 8, dtype=torch.long)
    return annotate(MaseGraph(model.eval(), dummy_in={"input_ids": ids}))


@functools.cache
def family(name: str):
    """An annotated graph of a small model of each family."""
    small = {"vocab_size": 64, "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4}
    if name == "llama":
        return decoder("LlamaModel", "LlamaConfig", **small, intermediate_size=32)
    if name == "gpt2":
        return decoder(
            "GPT2Model", "GPT2Config", vocab_size=64, n_embd=16, n_layer=2, n_head=4, n_positions=16
        )
    return {"mlp": mlp, "bert": bert, "images": images}[name]()[0]


FAMILIES = ["llama", "mlp", "bert", "gpt2", "images"]


@pytest.mark.share(2)
@pytest.mark.parametrize("name", first_and_slow(FAMILIES, 2))
@pytest.mark.parametrize("shape", ["2", "2x2", "2x1x2"])
@pytest.mark.parametrize("bandwidth", first_and_slow([1e9, 1e6, 1e11], 1))
def test_no_hand_plan_is_faster_than_ours(name, shape, bandwidth):
    mesh = Mesh(tuple(map(int, shape.split("x"))), bandwidth=(bandwidth,), **SLOW_DEVICES)
    graph = family(name)
    plan = make_plan(graph, mesh)
    others = hand_plans(graph, mesh)
    assert list(others) == list(HAND_PLANS)
    for other in others.values():
        assert plan.cost.step_seconds <= other.cost.step_seconds * (1 + 1e-9)
    limit = max(other.cost.memory_bytes for other in others.values()) * 9 // 10
    tight = make_plan(graph, Mesh(mesh.shape, (bandwidth,), memory=limit, **SLOW_DEVICES))
    fitting = [o.cost.step_seconds for o in others.values() if o.cost.memory_bytes <= limit]
    assert all(tight.bound_seconds <= seconds for seconds in fitting)
    assert all(tight.cost.step_seconds <= seconds * 1.01 for seconds in fitting)


def test_ddp_replicates_parameters_and_splits_the_batch():
    plan = hand_plans(family("llama"), Mesh((2, 2), **SLOW_DEVICES))["DDP"]
    parameters = {n: o for n, o in plan.strategies.items() if n.startswith("parameter")}
    assert all(s.result == "R" for o in parameters.values() for s in o)
    layers = {n: o for n, o in plan.strategies.items() if n.endswith("proj")}
    assert {s.name for o in layers.values() for s in o} == {"split 0"}
    assert set(plan.cost.collectives) <= {"all_reduce", "all_gather"}


def test_fsdp_stores_every_parameter_in_parts_and_frees_it():
    mesh = Mesh((2, 2), **SLOW_DEVICES)
    plans = hand_plans(family("llama"), mesh)
    parameters = {n: o for n, o in plans["FSDP"].strategies.items() if n.startswith("parameter")}
    assert all(s.is_freed for o in parameters.values() for s in o)
    assert plans["FSDP"].cost.parameter_bytes * 4 == plans["DDP"].cost.parameter_bytes
    assert plans["FSDP"].cost.memory_bytes < plans["DDP"].cost.memory_bytes


def test_megatron_splits_columns_then_rows_and_talks_twice_a_layer_each_way():
    plan = hand_plans(family("llama"), Mesh((2,), bandwidth=(1e9,), **SLOW_DEVICES))["Megatron"]
    names = {n: o[0].name for n, o in plan.strategies.items() if n.endswith("proj")}
    assert {names[n] for n in names if n.endswith(("o_proj", "down_proj"))} == {"row"}
    assert {names[n] for n in names if n.endswith(("q_proj", "gate_proj"))} == {"column"}
    assert plan.cost.collectives == {"all_reduce": 8}  # 2 layers, 2 blocks, forward and backward


def test_the_sequence_is_split_between_the_layers_of_megatron():
    plan = hand_plans(family("llama"), Mesh((2,), bandwidth=(1e9,), **SLOW_DEVICES))[
        "Megatron + sequence"
    ]
    assert {"reduce_scatter", "all_gather"} <= set(plan.cost.collectives)


def test_the_batch_is_followed_through_views_and_transposes():
    program = program_of(family("llama"))
    batch, sequence = tracked_dims(program, 0), tracked_dims(program, 1)
    attention = next(n for n in batch if n.startswith("scaled_dot_product"))
    assert batch[attention] == 0
    transposed = next(v.name for v in program.values if v.op.name == "transpose")
    assert (batch[transposed], sequence[transposed]) == (0, 2)


def test_a_comparison_says_what_fits_and_how_much_slower_it_is():
    graph = family("mlp")
    ours = make_plan(graph, Mesh((2,), **SLOW_DEVICES))
    others = hand_plans(graph, ours.mesh)
    rows = comparison_records(ours, others)
    assert [row["plan"] for row in rows] == ["this plan", *HAND_PLANS]
    assert rows[0]["times_slower"] == 1.0
    assert all(row["times_slower"] >= 1 - 1e-9 and row["fits"] for row in rows)
