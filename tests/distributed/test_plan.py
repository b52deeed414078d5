"""Plans: no worse than those made by hand, within memory, and said plainly when impossible."""

import itertools
import json

import pytest
import torch
from distributed.models import bert, megatron_plan_pick, mlp, two
from passes.graphs import annotate
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.distributed.mesh import Mesh
from chop.distributed.plan import fixed_plan, make_plan, price
from chop.distributed.plan_report import cost_records, plan_records, plan_table
from chop.distributed.program import program_of
from chop.distributed.solver import solve
from chop.distributed.variables import variables
from chop.errors import ConfigError

GRAPHS = {"mlp": mlp, "bert": bert}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("training", [True, False])
def test_plan_is_no_worse_than_whole_or_megatron(name, training):
    graph, _ = GRAPHS[name]()
    plan = make_plan(graph, two(), training=training)
    picks = (lambda value: None, megatron_plan_pick())
    by_hand = [fixed_plan(graph, two(), pick, training=training) for pick in picks]
    assert plan.is_exact
    assert all(plan.cost.step_seconds <= other.cost.step_seconds for other in by_hand)


def test_megatron_talks_once_a_block_each_way():
    graph, _ = bert()
    cost = fixed_plan(graph, two(), megatron_plan_pick()).cost
    assert cost.collectives == {"all_reduce": 2 * 2 * 2}  # blocks × layers × forward, backward


@pytest.mark.slow
def test_search_finds_the_best_of_all_plans():
    """Every plan of a small model is priced; none beats the one found."""
    graph, _ = mlp(batch=7)  # the fewer ways, the fewer plans
    program = program_of(graph)
    ways = [v.layouts(2) for v in program.values]
    names = [v.name for v in program.values]
    costs = [
        price(program, two(), {0: dict(zip(names, each, strict=True))}, training=True)
        for each in itertools.product(*ways)
    ]
    assert len(costs) > 300
    found = make_plan(graph, two()).cost.step_seconds
    assert found == pytest.approx(min(c.step_seconds for c in costs), rel=1e-9)


def test_table_that_overflows_is_settled_early_and_says_so(monkeypatch):
    graph, _ = bert()
    decisions = variables(program_of(graph), two(), 0, {}, training=True)
    monkeypatch.setattr("chop.distributed.solver.MAX_STATES", 50)
    solution = solve(decisions, 0.0)
    assert not solution.is_exact
    assert list(solution.chosen) == [d.name for d in decisions]


def test_planning_is_deterministic():
    graph, _ = bert()
    assert make_plan(graph, two()).record() == make_plan(graph, two()).record()


def test_memory_that_binds_is_kept_at_some_cost_in_time():
    graph, _ = bert()
    free = make_plan(graph, two(), training=False)
    limit = free.cost.memory_bytes * 3 // 4
    tight = make_plan(graph, two(memory=limit), training=False)
    assert tight.cost.memory_bytes <= limit < free.cost.memory_bytes
    assert tight.cost.step_seconds >= tight.fastest_seconds == free.cost.step_seconds
    assert not tight.is_exact


def test_too_little_memory_says_how_much_is_missing():
    graph, _ = mlp()
    words = r"mesh memory 1000 bytes: every one of the 2 devices needs at least \d+ bytes .* more"
    with pytest.raises(ConfigError, match=words):
        make_plan(graph, two(memory=1000))


def test_a_mesh_that_divides_nothing_is_an_error():
    graph = annotate(MaseGraph(nn.Linear(4, 2).eval(), dummy_in=torch.randn(2, 4)))
    with pytest.raises(ConfigError, match=r"mesh_shape \[7\]: no tensor .* axis 0 of 7 devices"):
        make_plan(graph, Mesh((7,)))


def test_two_axes_are_no_worse_than_one_of_them():
    graph, _ = bert()
    grid, line = (make_plan(graph, two(shape=s)).cost for s in ((2, 2), (1, 2)))
    assert grid.step_seconds <= line.step_seconds


def test_tied_weights_are_one_value():
    graph, _ = bert(cls="BertForMaskedLM")
    plan = make_plan(graph, two())
    parameters = [n for n in plan.strategies if n.startswith("parameter ")]
    tied = [n for n in parameters if n.endswith(("word_embeddings.weight", "decoder.weight"))]
    assert tied == ["parameter bert.embeddings.word_embeddings.weight"]


def test_a_quantised_layer_is_not_split_inside_of_a_block():
    graph, _ = mlp()
    copy = annotate(MaseGraph(graph.original, dummy_in=graph.dummy_in))
    config = {"by": "type", "linear": {"config": {"name": "mxint"}}}
    graph, _ = passes.quantize_transform_pass(copy, config)
    values = {v.name: v for v in program_of(graph).values}
    assert [s.name for s in values["up"].layouts(2)] == ["replicate", "split 0", "column"]


def test_plan_is_plain_data_and_a_table():
    graph, _ = bert(layers=1)
    plan = make_plan(graph, two(shape=(1, 2)))
    assert json.loads(json.dumps(plan.record()))["cost"]["step_seconds"] > 0
    rows = {row["value"]: row for row in plan_records(plan)}
    assert rows["input_ids"]["layout"] == "R × R"
    assert {r["measure"] for r in cost_records(plan)} >= {"step", "memory of a device"}
    assert "replicate × column" in plan_table(plan) or "replicate × split" in plan_table(plan)


def test_pass_writes_layouts_into_the_metadata():
    graph, _ = mlp()
    graph, info = passes.autosharding_analysis_pass(
        graph, {"mesh_shape": [2], "flops": 1e9, "latency": [0.0], "training": False}
    )
    up = next(n for n in graph.nodes if n.name == "up").meta["mase"]["software"]
    strategy = info["plan"].strategies["up"][0]
    assert up["sharding"] == {"strategy": (strategy.name,)}
    assert up["results"]["data_out_0"]["sharding"] == (strategy.result,)
    assert up["args"]["weight"]["sharding"] == (strategy.operands.get("weight", "R"),)


def test_pass_names_its_key_where_the_mesh_is_wrong():
    with pytest.raises(ConfigError, match="autosharding: mesh flops must be above 0"):
        passes.autosharding_analysis_pass(mlp()[0], {"flops": -1.0})
