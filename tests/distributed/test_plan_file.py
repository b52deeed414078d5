"""Saved plans are priced again where they are loaded, and never silently kept."""

import copy
import json

import pytest
from distributed.models import SLOW_DEVICES, bert, mlp

import chop.passes as passes
from chop.actions import ShardArgs, shard
from chop.distributed.mesh import Mesh, bytes_of, mesh_shape_of
from chop.distributed.plan import make_plan
from chop.distributed.plan_file import load_plan, pins_of, plan_differences, plan_document
from chop.distributed.program import program_of
from chop.errors import ConfigError


def mesh_of(shape=(2,), **settings):
    return Mesh(shape, **{**SLOW_DEVICES, **settings})


def saved(graph, mesh):
    plan = make_plan(graph, mesh)
    return plan, json.loads(json.dumps(plan_document(plan, graph)))


@pytest.mark.parametrize("shape", [(2,), (2, 2)], ids=str)
def test_a_plan_comes_back_as_it_was_saved(shape):
    graph, _ = bert()
    limit = make_plan(graph, mesh_of(shape)).cost.memory_bytes * 9 // 10
    plan, document = saved(graph, mesh_of(shape, memory=limit))
    loaded = load_plan(document, graph)
    assert loaded.plan.record() == {**plan.record(), "fastest_seconds": plan.cost.step_seconds}
    assert loaded.changed_shapes == {}
    assert document["version"] == 3 and "talks" not in document["cost"]


def test_a_plan_of_the_old_format_still_loads():
    graph, _ = mlp()
    record = json.loads(json.dumps(make_plan(graph, mesh_of()).record()))
    for name in ("published", "recomputed", "bound_seconds", "gap"):
        del record[name]
    assert load_plan(record, graph).plan.cost.step_seconds > 0


def test_a_plan_of_version_2_still_loads():
    graph, _ = mlp()
    plan, document = saved(graph, mesh_of())
    del document["mesh"]["overlaps"]
    assert load_plan({**document, "version": 2}, graph).plan.cost == plan.cost


def test_other_shapes_are_priced_again_and_reported():
    small, large = mlp(8)[0], mlp(16)[0]
    plan, document = saved(small, mesh_of())
    loaded = load_plan(document, large)
    assert loaded.changed_shapes == {"x": ([8, 16], [16, 16])}
    assert loaded.saved_seconds == plan.cost.step_seconds < loaded.plan.cost.step_seconds
    assert loaded.plan.bound_seconds == 0.0 and not loaded.plan.is_exact


def test_shapes_that_a_plan_does_not_divide_are_an_error():
    _, document = saved(mlp(8)[0], mesh_of((2, 2)))
    for strategies in document["strategies"].values():
        for strategy in strategies:
            strategy["name"] = strategy["name"].replace("replicate", "replicated")
    with pytest.raises(ConfigError, match=r"value '.*' of shape .* cannot be split as"):
        load_plan(document, mlp(8)[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 9}, "plan: version 9 of the document is unknown. Known: 1 to 3. Update MASE"),
        ({"version": "3"}, "plan: version '3' of the document is unknown"),
        ({"mesh": {"shape": [2], "colour": 1}}, r"plan: mesh has unknown keys \['colour'\]"),
        (
            {"strategies": {"up": [{"name": "row", "tint": 1}]}},
            r"plan: strategy of 'up' has unknown keys \['tint'\]. Known: name, operands",
        ),
        ({"mesh": None}, "plan: no 'mesh' in the document"),
        ({"strategies": {}}, "plan: it is for another model"),
    ],
)
def test_a_wrong_document_is_explained(change, words):
    graph, _ = mlp()
    _, document = saved(graph, mesh_of())
    with pytest.raises(ConfigError, match=words):
        load_plan({**document, **change}, graph)


@pytest.mark.parametrize("name", ["split 0", "column", "row", "replicate"])
def test_a_pinned_value_has_its_strategy_and_the_rest_is_planned(name):
    graph, _ = mlp()
    free = make_plan(graph, mesh_of())
    pins = pins_of({"up": name}, program_of(graph), mesh_of())
    plan = make_plan(graph, mesh_of(), pins=pins)
    assert plan.strategies["up"][0].name == name
    assert plan.is_exact and plan.cost.step_seconds >= free.cost.step_seconds
    changed = {row["value"] for row in plan_differences(free, plan)}
    assert ("up" in changed) == (free.strategies["up"] != plan.strategies["up"])


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"nothing": "row"}, "pin 'nothing': no such value"),
        ({"up": "rows"}, "pin 'up': no strategy 'rows'. Known: column"),
    ],
)
def test_a_wrong_pin_is_named(pins, words):
    graph, _ = mlp()
    with pytest.raises(ConfigError, match=words):
        passes.autosharding_analysis_pass(graph, {"mesh_shape": [2], "pins": pins})


def test_sizes_and_meshes_are_read_from_words():
    assert bytes_of("80GB") == bytes_of("80 gb") == bytes_of(80_000_000_000) == 80 * 10**9
    assert bytes_of("2GiB") == 2**31 and mesh_shape_of("2×4x8") == (2, 4, 8)
    with pytest.raises(ConfigError, match="memory '80 pounds': expected bytes"):
        bytes_of("80 pounds")
    with pytest.raises(ConfigError, match="mesh '8by8': expected numbers of devices"):
        mesh_shape_of("8by8")


def test_shard_compares_loads_and_cuts(tmp_path):
    graph = copy.deepcopy(mlp()[0])
    first = shard(graph, ShardArgs(mesh_shape=(2,), memory="1GB", compare=True))
    assert "FSDP" in first.table() and "optimal" in first.table()
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(first.document))
    second = shard(graph, ShardArgs(mesh_shape=(2,), against=file, flops=1e9))
    assert "The saved plan takes" in second.table()
    cut = shard(copy.deepcopy(bert(layers=4)[0]), ShardArgs(mesh_shape=(2,), stages=2))
    assert "2 stages, 1 micro-batches: a step takes" in cut.table()
    assert json.loads(json.dumps(cut.record()))["pipeline"]["stages"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stages": 2, "compare": True}, "compare is for plans without a pipeline"),
        ({"stages": 2, "only": "up"}, "only is for plans without a pipeline"),
        (
            {"stages": 2, "verify": True, "training": False},
            "shard.verify: stages run a training step. Leave out --no-training",
        ),
    ],
)
def test_what_a_pipeline_does_not_do_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        shard(copy.deepcopy(mlp()[0]), ShardArgs(mesh_shape=(2,), **settings))


def test_a_file_that_is_no_plan_is_refused(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("no plan")
    with pytest.raises(ConfigError, match=r"plan.json is not a saved plan"):
        shard(copy.deepcopy(mlp()[0]), ShardArgs(mesh_shape=(2,), against=file))
