import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.actions.batch_columns import match_columns
from chop.actions.trainer import COMPLETE, last_complete, loss_of
from chop.dataset import ArrayDataset, get_dataset
from chop.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    MissingDependencyError,
    TrainingError,
)
from chop.models import MLP, get_model
from chop.passes.graph.transforms.quantize import quantize_transform_pass
from chop.tools import get_trainer

pytest.importorskip("accelerate", reason="needs the extra 'train': pip install 'masegraph[train]'")
INPUTS = ["input_ids", "attention_mask", "labels"]
SHORT = {"learning_rate": 3e-3, "per_device_train_batch_size": 16, "disable_tqdm": True}


def bert_graph(hf_input_names=INPUTS):
    torch.manual_seed(0)
    return MaseGraph(get_model("tiny_bert"), hf_input_names=hf_input_names)


def small(**sizes):
    return get_dataset("sequences", **{"train_size": 64, "test_size": 32, **sizes})


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_a_plain_module_learns_digits():
    torch.manual_seed(0)
    trainer = get_trainer(MLP(), get_dataset("digits"), num_train_epochs=3, **SHORT)
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] > max(0.85, before)


def test_a_graph_trains_as_the_model_it_was_traced_from():
    graph = bert_graph()
    twin = copy.deepcopy(graph.original)
    results = []
    for model in (graph.model, twin):
        get_trainer(model, small(), **SHORT).train()
        results.append(model.get_parameter("classifier.weight").detach())
    assert torch.allclose(*results, atol=1e-4)


def test_a_graph_without_labels_gets_its_loss_from_the_trainer():
    graph = bert_graph(["input_ids", "attention_mask"])
    trainer = get_trainer(graph.model, small(), **SHORT)
    batch = trainer.data_collator([small()["test"][i] for i in range(4)])
    batch = {name: tensor.to(trainer.args.device) for name, tensor in batch.items()}
    loss, outputs = trainer.compute_loss(graph.model.eval(), dict(batch), return_outputs=True)
    expected = nn.functional.cross_entropy(outputs["logits"], batch["labels"])
    assert torch.equal(loss, expected)
    assert "eval_accuracy" in trainer.evaluate()


def test_a_mase_graph_may_stand_for_its_model():
    graph = bert_graph()
    assert get_trainer(graph, small(), **SHORT).model is graph.model


class Root(nn.Module):
    """The gradient of a root at 0 is infinite, and NaN behind a square."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        return self.layer(x).square().sqrt()


def test_weights_that_the_last_step_made_nan_are_refused():
    """The loss of the only step is finite: it is computed before the weights change."""
    rows = ArrayDataset({"x": torch.randn(8, 4), "labels": torch.zeros(8, dtype=torch.int64)})
    trainer = get_trainer(Root(), {"train": rows, "test": rows}, max_steps=1, **SHORT)
    with pytest.raises(TrainingError, match=r"by step 1: parameter 'layer.weight' is not finite"):
        trainer.train()


class Logarithm(nn.Module):
    """A sum of weights in a logarithm: negative after one step."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2, bias=False)
        nn.init.constant_(self.layer.weight, 1e-3)

    def forward(self, x):
        return self.layer(x.abs()).log()


def test_a_loss_that_the_last_step_made_nan_is_refused():
    rows = ArrayDataset({"x": torch.randn(8, 4), "labels": torch.zeros(8, 2) - 20})
    trainer = get_trainer(Logarithm(), {"train": rows, "test": rows}, max_steps=1, **SHORT)
    with pytest.raises(TrainingError, match=r"after step 1 the loss .* is not finite"):
        trainer.train()
    assert all(weight.isfinite().all() for weight in trainer.model.parameters())


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    results = []
    for seed in (1, 1, 2):
        graph = bert_graph()
        get_trainer(graph.model, small(), seed=seed, **SHORT).train()
        results.append(state(graph.model))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


def test_one_trainer_serves_before_and_after_a_pass():
    graph = bert_graph()
    trainer = get_trainer(graph.model, small(), **SHORT)
    trainer.train()
    before = trainer.evaluate()["eval_loss"]
    config = {"name": "integer", "data_in_width": 4, "data_in_frac_width": 2}
    config |= {"weight_width": 4, "weight_frac_width": 2, "bias_width": 4, "bias_frac_width": 2}
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
    assert trainer.evaluate()["eval_loss"] != before
    kept = state(graph.model)
    trainer.train()
    assert not same(kept, state(graph.model))


def test_numbers_are_fitted_by_mean_squared_error():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    rows = ArrayDataset({"x": x, "labels": x.sum(1)})
    model = nn.Linear(4, 1)
    trainer = get_trainer(
        model, {"train": rows, "test": rows}, None, "mse", 20, **{**SHORT, "learning_rate": 0.1}
    )
    trainer.train()
    assert trainer.evaluate()["eval_mse"] < 0.05


def test_gradients_accumulate_to_the_larger_batch():
    results = []
    for sizes in ((16, 1), (8, 2)):
        torch.manual_seed(0)
        model = MLP()
        options = {"per_device_train_batch_size": sizes[0], "gradient_accumulation_steps": sizes[1]}
        options |= {"max_steps": 4, "optim": "sgd", "learning_rate": 0.1, "disable_tqdm": True}
        get_trainer(model, get_dataset("digits"), **options).train()
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*results, atol=1e-5)


# -- what a dataset must have -----------------------------------------------------------------


class Two(nn.Module):
    def forward(self, a, b):
        return a + b


def test_names_decide_which_column_feeds_which_argument():
    found = match_columns(Two(), ["b", "text", "a", "label"])
    assert found == {"b": "b", "a": "a", "label": "labels"}


def test_one_column_feeds_the_one_argument():
    found = match_columns(MLP(), ["pixel_values", "labels"])
    assert found == {"pixel_values": "x", "labels": "labels"}


def test_columns_that_do_not_fit_are_an_error():
    message = "the model takes a, b; the dataset has columns a, labels"
    with pytest.raises(DataError, match=message):
        match_columns(Two(), ["a", "labels"])


def test_a_dataset_without_labels_is_an_error():
    with pytest.raises(DataError, match=r"no column of labels \(labels, label, label_ids\)"):
        match_columns(MLP(), ["x"])


def test_missing_splits_are_an_error():
    message = "expected splits 'train' and one of test, validation; got train"
    with pytest.raises(DataError, match=message):
        get_trainer(MLP(), {"train": get_dataset("digits")["train"]})


def test_labels_of_an_unknown_type_are_an_error():
    with pytest.raises(DataError, match=r"labels are torch.bool; a loss is known for torch.int64"):
        loss_of(torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool))


def test_an_unknown_training_argument_is_an_error():
    with pytest.raises(ConfigError, match=r"get_trainer: .*'learning_rat'"):
        get_trainer(MLP(), get_dataset("digits"), learning_rat=1.0)


def test_training_without_accelerate_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'masegraph\[train\]'"):
        get_trainer(MLP(), get_dataset("digits"))


# -- checkpoints ------------------------------------------------------------------------------

RESUMABLE = {**SHORT, "resume": True, "save_steps": 3, "num_train_epochs": 2}

PROGRAM = """
import os, signal, sys
from tests.actions.test_train import RESUMABLE, bert_graph, small
from chop.actions.trainer import GraphTrainer
from chop.tools import get_trainer

def die(self, *args, **kwargs):
    if self.state.global_step >= 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *args, **kwargs)

original = getattr(GraphTrainer, sys.argv[2])
setattr(GraphTrainer, sys.argv[2], die)
get_trainer(bert_graph().model, small(), output_dir=sys.argv[1], **RESUMABLE).train()
"""


def noted(folder, step, files, lost=()):
    """A checkpoint whose note lists `files`, of which some were lost."""
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    for name in files:
        (checkpoint / name).write_text("x")
    sizes = dict.fromkeys(files, 1)
    (checkpoint / COMPLETE).write_text(json.dumps({"seed": 0, "files": sizes}))
    for name in lost:
        (checkpoint / name).unlink()


def test_a_checkpoint_that_lost_a_file_is_not_gone_on_from(tmp_path):
    noted(tmp_path, 2, ("model.safetensors", "optimizer.pt"))
    noted(tmp_path, 4, ("model.safetensors", "optimizer.pt"), lost=("optimizer.pt",))
    assert last_complete(tmp_path, {"seed": 0}).name == "checkpoint-2"


def test_a_checkpoint_whose_note_lists_no_files_is_one_of_before(tmp_path):
    noted(tmp_path, 2, ())
    (tmp_path / "checkpoint-2" / COMPLETE).write_text('{"seed": 0}')
    assert last_complete(tmp_path, {"seed": 0}).name == "checkpoint-2"


MOMENTS = [pytest.param(m, marks=pytest.mark.slow) for m in ("_save_rng_state", "compute_loss")]
"""In the midst of writing a checkpoint, and between two."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_resumes_and_reaches_the_same_weights(tmp_path, moment):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), moment]
    died = subprocess.run(command, env=environment, cwd=root, capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()[-2000:]
    resumed, straight = bert_graph(), bert_graph()
    trainer = get_trainer(resumed.model, small(), output_dir=tmp_path / "run", **RESUMABLE)
    assert last_complete(trainer.folder, trainer.facts).name == "checkpoint-3"
    trainer.train()
    torch.set_num_threads(1)
    get_trainer(straight.model, small(), output_dir=tmp_path / "other", **RESUMABLE).train()
    assert same(state(resumed.model), state(straight.model))
    assert trainer.state.global_step == 8


@pytest.mark.slow
def test_a_finished_run_resumes_to_its_result_at_once(tmp_path):
    first, again = bert_graph(), bert_graph()
    get_trainer(first.model, small(), output_dir=tmp_path, **RESUMABLE).train()
    get_trainer(again.model, small(), output_dir=tmp_path, **RESUMABLE).train()
    assert same(state(first.model), state(again.model))


def test_a_run_that_does_not_resume_starts_afresh_and_writes_nothing(tmp_path):
    graph = bert_graph()
    get_trainer(graph.model, small(), output_dir=tmp_path / "run", **SHORT).train()
    assert not list(tmp_path.rglob("checkpoint-*"))


def test_tied_weights_survive_a_checkpoint(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
            self.out = nn.Linear(64, 10)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.out(torch.relu(self.second(torch.relu(self.first(x.flatten(1))))))

    options = {**SHORT, "resume": True, "save_steps": 5, "output_dir": tmp_path}
    models = []
    for steps in (5, 5):
        torch.manual_seed(0)
        models.append(Tied())
        get_trainer(models[-1], get_dataset("digits"), max_steps=steps, **options).train()
    assert same(state(models[0]), state(models[1]))
    assert models[1].first.weight is models[1].second.weight


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    options = {**SHORT, "resume": True, "max_steps": 2, "save_steps": 2, "output_dir": tmp_path}
    get_trainer(MLP(), get_dataset("digits"), **options).train()
    message = r"checkpoint-2: belongs to another run: its seed is 0, this run's 1. Give another"
    with pytest.raises(CheckpointError, match=message):
        get_trainer(MLP(), get_dataset("digits"), seed=1, **options).train()


def test_asking_to_resume_from_nothing_is_an_error(tmp_path):
    trainer = get_trainer(MLP(), get_dataset("digits"), output_dir=tmp_path, **SHORT)
    with pytest.raises(CheckpointError, match="no complete checkpoint to resume from"):
        trainer.train(resume_from_checkpoint=True)


def test_a_checkpoint_says_what_run_it_is_of(tmp_path):
    options = {**SHORT, "resume": True, "max_steps": 2, "save_steps": 2, "output_dir": tmp_path}
    get_trainer(MLP(), get_dataset("digits"), **options).train()
    facts = json.loads((tmp_path / "checkpoint-2" / COMPLETE).read_text())
    assert facts["learning_rate"] == SHORT["learning_rate"]
    assert facts["rows"] == 1437
