"""`shard` plans a graph as a user gives it, and says what it found."""

import copy
import json

from distributed.models import mlp

from chop.actions import ShardArgs, shard
from chop.actions.sharding import verdict
from chop.distributed.verify_plan import Verification


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
