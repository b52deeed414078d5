"""Spaces and evaluations of models inside studies."""

import pytest
from search_models import bert, bert_subject, equal, mlp_graph, mlp_subject, state

from chop.search import (
    ArchitectureEvaluator,
    ArchitectureSpace,
    PrecisionEvaluator,
    PrecisionSpace,
    search,
)
from chop.search.apply import apply

FORMATS = {"integer": {"width": [4, 8], "frac_width": [2]}, "mxint": {"width": [4]}}


def test_an_infeasible_point_is_a_failed_trial_with_its_reason(tmp_path):
    space = ArchitectureSpace(bert(), {"hidden_size": [16], "num_attention_heads": [2, 3]})
    evaluate = ArchitectureEvaluator(bert_subject, space)
    result = search(space, evaluate, sampler="grid", trials=2, storage=tmp_path / "study.db")
    states = {t["params"]["num_attention_heads"]: t["state"] for t in result.trials}
    assert states == {2: "complete", 3: "failed"}
    reason = next(t["reason"] for t in result.trials if t["state"] == "failed")
    assert "hidden_size 16 is not divisible by num_attention_heads 3" in reason


def test_the_best_of_a_study_comes_back_bit_for_bit(tmp_path):
    space = PrecisionSpace(mlp_graph(), FORMATS, joint=True)
    evaluate = PrecisionEvaluator(mlp_subject, space, train_after=True)
    result = search(space, evaluate, sampler="tpe", trials=6, storage=tmp_path / "study.db")
    result.save(tmp_path)
    graph = apply(tmp_path / "study.json", "best", evaluate, directory=tmp_path / "best")
    assert mlp_subject().evaluate(graph) == result.best["values"]["accuracy"]
    assert equal(state(graph), state(apply(result.record, result.best["number"], evaluate)))


def test_accuracy_and_bits_are_searched_together(tmp_path):
    space = PrecisionSpace(mlp_graph(), FORMATS, joint=True)
    evaluate = PrecisionEvaluator(mlp_subject, space, ("average_bits",))
    both = {"accuracy": "maximize", "average_bits": "minimize"}
    first = [space.uniform(label) for label in space.options]
    options = {"trials": 8, "storage": tmp_path / "study.db", "initial": first}
    result = search(space, evaluate, both, sampler="nsga2", **options)
    lightest = min(t["values"]["average_bits"] for t in result.trials)
    assert lightest == pytest.approx(4.0)
    front = result.pareto_front()
    assert lightest in [t["values"]["average_bits"] for t in front]
    assert all(len(t["attributes"]["formats"]) == 3 for t in front)


def test_a_function_of_ones_own_is_an_evaluation(tmp_path):
    space = ArchitectureSpace(bert(), {"num_hidden_layers": [1, 2, 3]}, inherit=False)

    def evaluate(point, trial):
        model = space.build(point, trial.seed)
        return {"size": sum(p.numel() for p in model.parameters())}

    smallest = {"size": "minimize"}
    result = search(
        space, evaluate, smallest, sampler="grid", trials=3, storage=tmp_path / "study.db"
    )
    assert result.best["params"] == {"num_hidden_layers": 1}
