"""Training that follows a teacher: scores, outputs of modules, refusals and resuming."""

import copy

import pytest
import torch
import torch.nn.functional as F
from covering import first_and_slow
from torch import nn

from chop import MaseGraph
from chop.actions.distillation import Distillation, divergence
from chop.dataset import get_dataset
from chop.errors import CheckpointError, ConfigError
from chop.models import MLP, get_model
from chop.passes import (
    insert_lora_adapter_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
)
from chop.tools import get_trainer

pytest.importorskip("accelerate", reason="needs the extra 'train': pip install 'masegraph[train]'")
SETTINGS = {"learning_rate": 1e-3, "per_device_train_batch_size": 32, "disable_tqdm": True}
INT3 = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5}
INT3 |= {"weight_width": 3, "weight_frac_width": 2, "bias_width": 8, "bias_frac_width": 5}


@pytest.fixture(scope="module")
def digits():
    return get_dataset("digits")


@pytest.fixture(scope="module")
def teacher(digits):
    torch.manual_seed(0)
    model = MLP()
    get_trainer(model, digits, num_train_epochs=2, **{**SETTINGS, "learning_rate": 3e-3}).train()
    return model.cpu().eval()


def compressed(teacher, how):
    graph = MaseGraph(copy.deepcopy(teacher), dummy_in={"x": torch.zeros(2, 1, 8, 8)})
    if how in ("quantised", "adapters"):
        quantize_transform_pass(graph, {"by": "type", "linear": {"config": INT3}})
    if how == "pruned":
        prune_transform_pass(graph, {"weight": {"sparsity": 0.8}})
    if how == "adapters":
        insert_lora_adapter_transform_pass(graph, {"rank": 4})
    return graph


def batch_of(digits, trainer, count=64):
    return [trainer.data_collator([digits["test"][i] for i in range(count)])]


@pytest.mark.parametrize("how", first_and_slow(["quantised", "pruned", "adapters"], 2))
def test_a_compressed_model_comes_nearer_to_its_teacher(how, teacher, digits):
    graph = compressed(teacher, how)
    follow = Distillation(teacher, temperature=2.0, modules=("layers.1",))
    trainer = get_trainer(graph, digits, num_train_epochs=2, distillation=follow, **SETTINGS)
    rows = batch_of(digits, trainer)
    frozen = {n: p.clone() for n, p in graph.model.named_parameters() if not p.requires_grad}
    kept = {n: b.clone() for n, b in graph.model.named_buffers() if "mask" in n}
    weights = [p.clone() for p in teacher.parameters()]
    before, loss = follow.measure(graph.model, rows), follow.loss(graph.model, rows[0])[0]
    trainer.train()
    graph.model.cpu().eval()
    assert follow.measure(graph.model, rows) < 0.7 * before
    assert follow.loss(graph.model, rows[0])[0] < 0.9 * loss
    assert all(torch.equal(graph.model.get_parameter(n), p) for n, p in frozen.items())
    assert bool(frozen) == (how == "adapters") and bool(kept) == (how == "pruned")
    assert all(torch.equal(graph.model.get_buffer(n), b) for n, b in kept.items())
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), weights, strict=True))


def test_the_labels_do_not_matter_without_their_weight(teacher, digits):
    follow = Distillation(teacher, temperature=3.0)
    batch = batch_of(digits, get_trainer(teacher, digits, **SETTINGS), 8)[0]
    student = MLP().eval()
    first = follow.loss(student, batch)[0]
    again = follow.loss(student, {**batch, "labels": batch["labels"] * 0})[0]
    assert torch.equal(first, again)
    x = {k: v for k, v in batch.items() if k != "labels"}
    ours, theirs = (F.log_softmax(m(**x) / 3.0, -1) for m in (student, teacher))
    expected = 9.0 * F.kl_div(ours, theirs, log_target=True, reduction="batchmean")
    torch.testing.assert_close(first, expected)


def test_padding_does_not_count():
    scores, other = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    changed = torch.where(mask[..., None].bool(), other, torch.randn(2, 3, 5))
    assert torch.equal(divergence(scores, other, mask), divergence(scores, changed, mask))
    assert not torch.equal(divergence(scores, other), divergence(scores, changed))
    assert divergence(scores, scores) == 0


def test_a_resumed_run_reaches_the_same_weights_and_another_teacher_is_refused(
    teacher, digits, tmp_path
):
    def trainer(folder, model=teacher, **settings):
        graph = compressed(teacher, "quantised")
        follow = Distillation(model, **settings)
        return get_trainer(
            graph,
            digits,
            distillation=follow,
            output_dir=tmp_path / folder,
            resume=True,
            save_steps=10,
            **SETTINGS,
        )

    whole = trainer("whole")
    whole.train()
    cut = trainer("cut")
    step = cut.training_step
    calls = []

    def stop(*args, **kwargs):
        calls.append(1)
        if len(calls) > 15:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    cut.training_step = stop
    with pytest.raises(KeyboardInterrupt):
        cut.train()
    resumed = trainer("cut")
    resumed.train()
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    with pytest.raises(CheckpointError, match=r"its temperature is 1.0, this run's 2.0"):
        trainer("whole", temperature=2.0).train()
    with pytest.raises(CheckpointError, match=r"its teacher is"):
        trainer("whole", MLP()).train()


REFUSED = {
    "temperature": ({"temperature": 0.0}, r"temperature: 0.0. Allowed: a number above 0"),
    "weight": ({"module_weight": -1.0}, r"module_weight: -1.0. Allowed: 0 or more"),
    "module": (
        {"modules": ("layers.11",)},
        r"the model calls no module 'layers.11'. The nearest is 'layers.1'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_cannot_be_are_refused(name, teacher, digits):
    settings, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        get_trainer(MLP(), digits, distillation=Distillation(teacher, **settings), **SETTINGS)


def test_a_teacher_with_other_classes_or_words_is_refused(digits):
    words = r"scores of shape \[1, 4\], and the model \[1, 10\]. Allowed: .* vocabulary or classes"
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    other.forward = lambda x: nn.Sequential.forward(other, x)
    with pytest.raises(ConfigError, match=words):
        get_trainer(MLP(), digits, distillation=Distillation(other), **SETTINGS)
    llama, larger = get_model("tiny_llama"), get_model("tiny_llama")
    larger.config.vocab_size *= 2
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ConfigError, match=r"a vocabulary of \d+, and the model \d+"):
        Distillation(larger).check(llama, {"input_ids": ids})
