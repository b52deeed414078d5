"""`shard` plans a graph as a user gives it, and says what it found."""

import copy
import json

import pytest
from distributed.models import bert, mlp

from chop.actions import ShardArgs, shard
from chop.actions.sharding import verdict
from chop.distributed.verify_plan import Verification
from chop.errors import ConfigError


def test_shard_annotates_plans_and_records():
    graph = copy.deepcopy(mlp()[0])
    result = shard(graph, ShardArgs(mesh_shape=(2,)))
    assert result.verification is None
    assert json.loads(json.dumps(result.record()))["plan"]["mesh"]["shape"] == [2]
    assert "arithmetic" in result.table()


def test_a_verdict_says_what_was_compared():
    found = Verification(1e-7, None, (1_000_000, 2_000_000), {}, 0.1, tolerance=1e-5)
    assert "2 processes: equal to the whole model, outputs within 1.0e-07 of" in verdict(found)
    wrong = Verification(0.5, 0.25, (1, 1), {}, 0.1, tolerance=1e-5)
    assert "NOT equal to the whole model" in verdict(wrong)
    assert not wrong.record()["is_equal"]


SLOW = {"flops": 1e9, "latency": (1e-6,), "training": False}


def split_values(only: str) -> set[str]:
    args = ShardArgs(mesh_shape=(2,), only=only, **SLOW)
    plan = shard(copy.deepcopy(bert(layers=2)[0]), args).plan
    return {name for name, each in plan.strategies.items() if any(s.is_split for s in each)}


def test_a_part_of_a_model_is_split_and_the_rest_is_whole():
    split = split_values("bert.encoder.layer.0")
    assert any("layer_0_" in name for name in split)
    assert not any("layer_1_" in name or "embeddings" in name for name in split)
    assert any("layer_1_" in name for name in split_values("bert.encoder.layer.[01]"))


def test_a_part_that_is_not_in_the_model_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"no layer with parameters matches 'upp'.*'up'"):
        shard(copy.deepcopy(mlp()[0]), ShardArgs(mesh_shape=(2,), only="upp"))


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(2, 2), (1, 2)], ids=str)
def test_stages_and_micro_batches_are_verified_on_processes(counts):
    stages, micro_batches = counts
    args = ShardArgs(mesh_shape=(2,), stages=stages, micro_batches=micro_batches, verify=True)
    graph, inputs = bert(layers=4)  # with a loss
    result = shard(copy.deepcopy(graph), args, {**inputs})
    assert result.verification.is_equal
    assert len(result.verification.parameter_bytes) == 2 * stages
    assert "equal to the whole model" in result.table()


def test_stages_of_a_model_with_tied_weights_have_weights_of_their_own():
    graph, inputs = bert(layers=2, cls="BertForMaskedLM")  # embedding and decoder share a matrix
    before = copy.deepcopy(graph)
    result = shard(before, ShardArgs(mesh_shape=(2,), stages=2, micro_batches=2), {**inputs})
    assert len(result.pipeline.stages) == 2
    words = [
        n for n in result.plan.strategies if n.endswith(("word_embeddings.weight", "r.weight"))
    ]
    assert {"parameter cls.predictions.decoder.weight"} < set(words)
    tied = before.model.get_submodule("cls.predictions.decoder").weight
    assert tied is before.model.get_submodule("bert.embeddings.word_embeddings").weight
