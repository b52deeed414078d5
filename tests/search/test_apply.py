import json
import tomllib

import pytest
import torch
from covering import first_and_slow
from search_models import bert_graph, bert_subject, data, equal, mlp_graph, mlp_subject, state

from chop import MaseGraph
from chop.errors import DataError
from chop.search import TrialContext
from chop.search.apply import apply, best_trial, find_trial
from chop.search.compression import PruneSpace
from chop.search.evaluate import CompressionEvaluator, PrecisionEvaluator
from chop.search.precision import PrecisionSpace
from chop.search.training import TrainingSpace

FORMATS = {"integer": {"width": [4, 8], "frac_width": [2, 4]}, "mxint": {"width": [4]}}
EIGHT = "integer(width=8, frac_width=4)"


def study_of(evaluator, points, directory=None):
    """A study as plain data: `points` evaluated in turn."""
    trials = []
    for number, point in enumerate(points):
        context = TrialContext(
            number, seed=10 + number, directory=directory or TrialContext.directory
        )
        values = evaluator(point, context)
        trials.append(
            {
                "number": number,
                "state": "complete",
                "values": values,
                "params": point,
                "attributes": context.attributes,
                "seconds": 1.0,
                "reason": None,
            }
        )
    objectives = {name: "maximize" if name == "accuracy" else "minimize" for name in values}
    return {"name": "s", "objectives": objectives, "sampler": "random", "seed": 0, "trials": trials}


def mlp_study(costs=(), **options):
    space = PrecisionSpace(mlp_graph(), FORMATS, joint=True) * PruneSpace({"sparsity": [0.0, 0.5]})
    evaluator = PrecisionEvaluator(mlp_subject, space, costs, **options)
    uniform = space.factors[0].uniform
    points = [
        {**uniform("float"), "prune.sparsity": 0.5},
        {**uniform(EIGHT), "prune.sparsity": 0.0},
        {**uniform("mxint(width=4)"), "prune.sparsity": 0.5},
    ]
    return evaluator, points


@pytest.mark.parametrize("number", first_and_slow([2, 0, 1]))
def test_a_trial_is_rebuilt_bit_for_bit_from_its_parameters_and_seed(number):
    evaluator, points = mlp_study(train_after=True)
    study = json.loads(json.dumps(study_of(evaluator, points)))
    first, second = (apply(study, number, evaluator) for _ in range(2))
    assert equal(state(first), state(second))
    assert evaluator.subject().evaluate(first) == study["trials"][number]["values"]["accuracy"]


@pytest.mark.slow
def test_a_trained_trial_is_rebuilt_bit_for_bit():
    space = PrecisionSpace(bert_graph(), FORMATS, joint=True) * TrainingSpace({"epochs": [1]})
    evaluator = CompressionEvaluator(bert_subject, space)
    study = study_of(evaluator, [{**space.factors[0].uniform(EIGHT), "epochs": 1}])
    graph, again = apply(study, "best", evaluator), apply(study, "best", evaluator)
    rows = {k: v[:4] for k, v in data()["test"].columns.items()}
    with torch.no_grad():
        assert torch.equal(graph.model(**rows)["logits"], again.model(**rows)["logits"])
    assert equal(state(graph), state(again))


def test_a_kept_model_is_read_back_without_the_evaluator(tmp_path):
    evaluator, points = mlp_study(train_after=True, keep=True)
    study = study_of(evaluator, points[1:2], tmp_path)
    (tmp_path / "study.json").write_text(json.dumps(study))
    graph = apply(tmp_path / "study.json", 0)
    assert equal(state(graph), state(apply(tmp_path, "best")))
    assert evaluator.subject().evaluate(graph) == study["trials"][0]["values"]["accuracy"]


def test_the_best_model_is_exported_with_its_configuration(tmp_path):
    evaluator, points = mlp_study()
    study = study_of(evaluator, points)
    graph = apply(study, "best", evaluator, directory=tmp_path / "best")
    loaded = MaseGraph.from_checkpoint(tmp_path / "best" / "model")
    x = torch.randn(3, 8)
    assert torch.equal(loaded.model(x=x), graph.model(x=x))
    config = tomllib.loads((tmp_path / "best" / "config.toml").read_text())
    trial = json.loads((tmp_path / "best" / "trial.json").read_text())
    assert config["seed"] == trial["attributes"]["seed"]
    assert ("prune_transform_pass" in config) == (trial["params"]["prune.sparsity"] > 0)


def test_the_best_trial_is_the_best_by_the_objective_named():
    evaluator, points = mlp_study(costs=("average_bits",))
    study = study_of(evaluator, points)
    bits = [t["values"]["average_bits"] for t in study["trials"]]
    assert find_trial(study, "average_bits")["number"] == bits.index(min(bits))
    accuracies = [t["values"]["accuracy"] for t in study["trials"]]
    assert best_trial(study, "accuracy")["values"]["accuracy"] == max(accuracies)
    with pytest.raises(DataError, match=r"'best' names no trial of 's'. Allowed: a number, accur"):
        find_trial(study, "best")


def test_what_is_not_there_is_said(tmp_path):
    evaluator, points = mlp_study()
    study = study_of(evaluator, points[:1])
    with pytest.raises(DataError, match=r"'s' has 1 trials, none 7"):
        apply(study, 7, evaluator)
    with pytest.raises(DataError, match=r"kept no model. Give the evaluator"):
        apply(study)
    with pytest.raises(DataError, match=r"no study in"):
        apply(tmp_path / "study.json")
    study["trials"][0] |= {"state": "failed", "reason": "out of memory"}
    with pytest.raises(DataError, match=r"trial 0 is failed: out of memory"):
        apply(study, "0")
    with pytest.raises(DataError, match=r"no trial of 's' has a result"):
        apply(study)
