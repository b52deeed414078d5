import copy
import pickle

import pytest
import torch
from compression_models import INTEGER
from search_models import bert, bert_graph, bert_subject, equal, mlp_graph, mlp_subject, state

from chop.errors import ConfigError
from chop.nn.quantized.layer import QuantizedModule
from chop.passes import quantize_transform_pass
from chop.search import Pruned, TrialContext
from chop.search.architecture import ArchitectureSpace
from chop.search.compression import PruneSpace
from chop.search.evaluate import (
    MODES,
    ArchitectureEvaluator,
    CompressionEvaluator,
    PrecisionEvaluator,
)
from chop.search.precision import PrecisionSpace
from chop.search.training import TrainingSpace

FORMATS = {"integer": {"width": [4, 8], "frac_width": [2, 4]}}


def precision():
    return PrecisionSpace(mlp_graph(), FORMATS, joint=True)


def compression():
    return precision() * PruneSpace({"sparsity": [0.0, 0.5]})


EIGHT = "integer(width=8, frac_width=4)"


def test_a_precision_is_measured_on_a_copy_and_the_base_is_unchanged_bit_for_bit():
    space = compression()
    before, nodes = state(mlp_graph()), [str(n) for n in mlp_graph().nodes]
    evaluator = PrecisionEvaluator(mlp_subject, space, ("average_bits",), train_after=True)
    point = {**space.factors[0].uniform(EIGHT), "prune.sparsity": 0.5}
    values = evaluator(point, TrialContext(seed=3))
    assert values["average_bits"] == 8.0
    assert equal(state(mlp_graph()), before)
    assert [str(n) for n in mlp_graph().nodes] == nodes
    assert not any(isinstance(m, QuantizedModule) for m in mlp_graph().modules.values())


def test_trials_do_not_share_state():
    space = precision()
    evaluator = PrecisionEvaluator(mlp_subject, space, train_after=True)
    point = space.uniform(EIGHT)
    alone = evaluator(point, TrialContext(seed=1))
    evaluator(space.uniform("float"), TrialContext(seed=2))
    assert evaluator(point, TrialContext(seed=1)) == alone


@pytest.mark.parametrize("mode", MODES)
def test_the_modes_of_compression_do_what_they_say(mode):
    space = compression()
    evaluator = CompressionEvaluator(mlp_subject, space, mode=mode)
    context = TrialContext(seed=4)
    graph = evaluator.build({**space.factors[0].uniform(EIGHT), "prune.sparsity": 0.5}, context)
    is_compressed = any(isinstance(m, QuantizedModule) for m in graph.modules.values())
    assert is_compressed == ("compress" in MODES[mode])
    assert ("sparsity" in context.attributes) == is_compressed
    assert context.attributes["seed"] == 4
    trained = MODES[mode].count("train")
    expected = copy.deepcopy(mlp_graph())
    for _ in range(trained):
        mlp_subject().train(expected, 4)
    assert torch.equal(graph.modules["layers.1"].bias, expected.modules["layers.1"].bias)


def test_an_unknown_mode_or_cost_is_refused():
    with pytest.raises(
        ConfigError, match=r"mode: unknown 'train->compres'. Did you mean 'train->co"
    ):
        CompressionEvaluator(mlp_subject, compression(), mode="train->compres")
    with pytest.raises(
        ConfigError, match=r"costs: unknown cost 'average_bit'. Did you mean 'averag"
    ):
        PrecisionEvaluator(mlp_subject, precision(), ("average_bit",))


def test_an_architecture_is_built_inherits_and_trains_with_the_settings_of_the_point():
    fields = {"num_hidden_layers": [1, 2], "hidden_size": [8, 16]}
    layers = {"attention.output.dense": ["linear", "identity"]}
    space = ArchitectureSpace(bert(), fields, layers=layers)
    space = space * TrainingSpace({"learning_rate": [1e-2], "epochs": [1, 2]})
    before = {k: v.clone() for k, v in bert().state_dict().items()}
    evaluator = ArchitectureEvaluator(bert_subject, space, ("parameters", "flops"))
    context = TrialContext(seed=1)
    point = {"num_hidden_layers": 1, "hidden_size": 8, "learning_rate": 1e-2, "epochs": 2}
    values = evaluator(point, context)
    assert values["parameters"] == context.attributes["parameters"]
    assert context.attributes["inherited"] == context.attributes["parameters"]
    assert list(context.reports) == [1, 2]  # a report for each epoch
    assert context.reports[2] == values["accuracy"]
    assert equal(bert().state_dict(), before)


def test_a_pruned_trial_ends_after_the_epoch_it_was_pruned_in():
    class Impatient(TrialContext):
        def report(self, step, value):
            super().report(step, value)
            raise Pruned("enough")

    space = ArchitectureSpace(bert(), {"num_hidden_layers": [1]}) * TrainingSpace({"epochs": [3]})
    context = Impatient(seed=1)
    with pytest.raises(Pruned):
        ArchitectureEvaluator(bert_subject, space)({"num_hidden_layers": 1, "epochs": 3}, context)
    assert list(context.reports) == [1]


def test_reports_do_not_change_what_is_trained():
    evaluator = PrecisionEvaluator(
        bert_subject,
        PrecisionSpace(bert_graph(), FORMATS, joint=True) * TrainingSpace({"epochs": [2]}),
        train_after=True,
    )
    point = {**evaluator.space.factors[0].uniform(EIGHT), "epochs": 2}
    told = evaluator.build(point, TrialContext(seed=1))
    silent = copy.deepcopy(bert_graph())
    quantize_transform_pass(silent, evaluator.space.factors[0].quantize_config(point))
    bert_subject().train(silent, 1, num_train_epochs=2)
    assert equal(state(told), state(silent))


def test_an_evaluator_can_be_sent_to_another_process():
    evaluator = PrecisionEvaluator(mlp_subject, precision(), ("average_bits",))
    sent = pickle.loads(pickle.dumps(evaluator))
    point = precision().uniform(EIGHT)
    assert sent(point, TrialContext(seed=1)) == evaluator(point, TrialContext(seed=1))


def test_what_a_point_means_can_be_read():
    space = compression() * TrainingSpace({"learning_rate": [1e-3]})
    evaluator = CompressionEvaluator(mlp_subject, space)
    point = {**space.factors[0].uniform(EIGHT), "prune.sparsity": 0.5, "learning_rate": 1e-3}
    told = evaluator.describe(point, seed=2)
    assert told["stages"] == ["train", "compress", "train"]
    assert told["training"] == {"learning_rate": 1e-3}
    first = told["quantize_transform_pass"]["layers.1"]["config"]
    assert first == INTEGER | {"weight_frac_width": 4, "bias_frac_width": 4}
