"""Quantised, packed, pruned and adapted layers are split like the layers they come from."""

import copy
import functools

import pytest
import torch
from distributed.derived_layers import (
    BY_PARTS,
    DERIVED,
    IN,
    MEASURED,
    OUT,
    beside,
    packed,
    pick_named,
    quantized,
)
from distributed.models import bert, megatron_plan_pick, two
from passes.graphs import annotate
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.distributed.mesh import Mesh
from chop.distributed.plan import fixed_plan, make_plan
from chop.distributed.plan_file import load_plan, plan_document
from chop.distributed.program import program_of
from chop.distributed.verify_plan import PlanRun, verify_plans
from chop.nn.quantized import from_float
from chop.nn.quantizers import FORMATS, parse_format

SLOW = {"latency": (1e-7,), "flops": 1e9, "memory_bandwidth": 1e10}
ALL = {"replicate", "split 0", "column", "row"}
LIMITED = {
    **{name: {"replicate", "column"} for name in MEASURED},  # inputs are measured whole too
    "fp8_block/16x32": ALL - {"split 0"},  # a tile has 16 rows of the batch
    "mxint3, coded": ALL - {"row"},
    "mxint6/16, coded": ALL - {"row"},
    "adapted coded mxint3": ALL - {"row"},
    "int8 rows": ALL - {"row"},  # its kernel has groups of 128 inputs
    "int8 rows, dynamic": ALL - {"row"},
}


@functools.cache
def derived():
    return beside(DERIVED)


def layer_of(graph: MaseGraph, index: int = 0):
    return next(v for v in program_of(graph).values if v.name == f"layers_{index}")


def names(value, devices: int = 2) -> set[str]:
    return {s.name for s in value.layouts(devices)}


def test_the_layers_cover_all_formats():
    spelled = {parse_format(text).name for text in (*BY_PARTS, *MEASURED)}
    assert spelled == set(FORMATS) - {"bypass"}


def test_every_layer_is_split_like_the_plain_one():
    graph, _ = derived()
    for index, name in enumerate(DERIVED):
        assert names(layer_of(graph, index)) == LIMITED.get(name, ALL), name


@pytest.mark.parametrize("make", [quantized("mxint8"), packed("mxint8")], ids=["values", "packed"])
def test_rows_are_split_at_the_boundaries_of_blocks_only(make):
    graph, _ = beside({"one": make})  # 4 blocks of 32 inputs
    assert "row" in names(layer_of(graph), 4)
    assert "row" not in names(layer_of(graph), 8)
    assert "column" in names(layer_of(graph), 8)


def test_the_result_of_rows_is_not_rounded_before_it_is_complete():
    config = {"name": "fixed8.4", "data_out_width": 8, "data_out_frac_width": 4}
    graph, _ = beside({"one": lambda layer: from_float(layer, config)})
    assert names(layer_of(graph)) == ALL - {"row"}


def test_a_layer_with_hooks_runs_whole():
    graph, _ = beside({"one": quantized("mxint8")})
    graph.model.get_submodule("layers.0").register_forward_hook(lambda *_: None)
    assert names(layer_of(graph)) == {"replicate"}


def test_scales_and_masks_follow_the_weight():
    graph, _ = derived()
    index = {name: i for i, name in enumerate(DERIVED)}

    def operands(layer: str, strategy: str) -> dict[str, str]:
        value = layer_of(graph, index[layer])
        return dict(next(s for s in value.layouts(2) if s.name == strategy).operands)

    row = {"codes": "S1", "scales": "S1", "bias": "P", "data_in_0": "S1"}
    assert operands("mxint4, packed", "row") == row
    assert operands("pruned mxint8", "column")["weight_mask"] == "S0"
    assert operands("learned scale per group", "row")["weight_scale"] == "S1"
    adapter = {"lora_A.weight": "R", "lora_B.weight": "S0"}
    assert adapter.items() <= operands("adapted", "column").items()
    adapter = {"lora_A.weight": "S1", "lora_B.weight": "R"}
    assert adapter.items() <= operands("adapted", "row").items()


def test_a_measured_weight_is_rounded_whole_and_cut():
    graph, _ = beside({"one": quantized("int8")})
    column = next(s for s in layer_of(graph).layouts(2) if s.name == "column")
    assert column.operands["weight"] == "R" and column.cuts == {"weight": 0, "bias": 0}
    plan = fixed_plan(graph, two(), pick_named(graph, "column", 2))
    assert load_plan(plan_document(plan, graph), graph).plan.strategies == plan.strategies


def test_the_planner_counts_the_bytes_of_packed_weights():
    graph, _ = beside({"one": packed("mxint4")})
    weight, scales, bias = OUT * IN // 2, OUT * IN // 32, OUT * 4
    for name, share in (("replicate", 1), ("column", 2)):
        plan = fixed_plan(graph, two(), pick_named(graph, name, 2), training=False)
        assert plan.cost.parameter_bytes == (weight + scales + bias) // share

    def stored_in_parts(value):
        is_split = value.is_parameter and "codes" in value.name
        return next((s for s in value.layouts(2) if s.result == "S0" and is_split), None)

    gathered = fixed_plan(graph, two(), stored_in_parts, training=False)
    assert [talk.sent for talk in gathered.cost.talks] == [weight / 2]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


@pytest.mark.parametrize("name", ["mxint8", "mxint4, packed", "adapted mxint8"])
def test_the_plan_of_a_derived_block_is_that_of_the_plain_block(name):
    inputs = {"x": torch.randn(1, 64)}
    graph = MaseGraph(Block().eval(), dummy_in=inputs)
    plain = make_plan(annotate(graph, inputs), two(), training=False)
    for layer in ("up", "down"):
        setattr(graph.model, layer, DERIVED[name](graph.model.get_submodule(layer)))
    plan = make_plan(annotate(graph, inputs), Mesh((2,), **SLOW), training=False)
    assert [plan.strategies[n][0].name for n in ("up", "down")] == ["column", "row"]
    assert plan.cost.collectives == plain.cost.collectives == {"all_reduce": 1}


def check(jobs: dict[str, PlanRun], *, exact: tuple[str, ...] = ()) -> None:
    """Run plans of one mesh: equal results, the bytes and the collectives of the plan."""
    for (name, job), result in zip(jobs.items(), verify_plans(list(jobs.values())), strict=True):
        assert result.is_equal, (name, result)
        assert set(result.parameter_bytes) == {job.plan.cost.parameter_bytes}, name
        if name in exact:
            assert result.output_difference == 0, (name, result)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2,), (4,), (2, 2)], ids=str)
def test_derived_layers_compute_the_same_on_real_processes(shape):
    """By columns no sum is divided, so that results are equal bit for bit."""
    graph, inputs = derived()
    strategies = ("split 0", "column", "row")
    plans = {
        name: fixed_plan(graph, two(shape=shape), pick_named(graph, name, shape[-1]))
        for name in strategies
    }
    jobs = {name: PlanRun(graph, plan, inputs) for name, plan in plans.items()}
    check(jobs, exact=("column",))


MXINT8 = {"by": "type", "linear": {"config": {"name": "mxint8/16"}}}
CHANGES = {
    "mxint8": [(passes.quantize_transform_pass, MXINT8)],
    "packed mxint4": [(passes.pack_weights_transform_pass, {"format": "mxint4", "group_size": 16})],
    "adapted mxint8": [
        (passes.quantize_transform_pass, MXINT8),
        (passes.insert_lora_adapter_transform_pass, {"rank": 4}),
    ],
}


def changed_bert(name: str) -> tuple[MaseGraph, dict]:
    graph, inputs = bert(layers=1)
    graph = copy.deepcopy(graph)
    for change, arguments in CHANGES[name]:
        graph, _ = change(graph, arguments)
    return annotate(graph, inputs), inputs


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2,), (2, 2)], ids=str)
def test_plans_of_changed_models_compute_the_same(shape):
    jobs = {}
    for name in CHANGES:
        graph, inputs = changed_bert(name)
        plan = make_plan(graph, two(shape=shape))
        heads = fixed_plan(graph, two(shape=shape), megatron_plan_pick())
        jobs |= {
            name: PlanRun(graph, plan, inputs),
            f"{name}, heads": PlanRun(graph, heads, inputs),
        }
    check(jobs)
