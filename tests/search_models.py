"""What the tests of evaluations share: small models that train in a second."""

import functools

import torch

from chop import MaseGraph
from chop.actions import Subject, trained_subject
from chop.dataset.arrays import ArrayDataset
from chop.models import MLP, tiny_bert


def data(rows=64, length=8, seed=0):
    """Sequences whose label is whether token 1 stands first."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 60, (rows, length), generator=generator)
    labels = torch.randint(0, 2, (rows,), generator=generator)
    ids[:, 0] = torch.where(labels == 1, 1, ids[:, 0])
    split = rows * 3 // 4
    mask = torch.ones_like(ids)
    whole = ArrayDataset({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return {"train": whole.select(range(split)), "test": whole.select(range(split, rows))}


@functools.cache
def bert():
    torch.manual_seed(0)
    return tiny_bert(hidden_size=16, intermediate_size=16, num_hidden_layers=2)


@functools.cache
def bert_graph():
    return MaseGraph(bert(), hf_input_names=["input_ids", "attention_mask", "labels"])


def bert_subject():
    return trained_subject(
        bert_graph(),
        data(),
        learning_rate=1e-2,
        per_device_train_batch_size=16,
        disable_tqdm=True,
        use_cpu=True,
    )


@functools.cache
def mlp_graph():
    torch.manual_seed(0)
    return MaseGraph(MLP(8, (8, 8), 4), dummy_in={"x": torch.randn(2, 8)})


def mlp_subject():
    """A subject without a trainer: weights are shaken by the seed, accuracy is a sum."""
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))

    def train(graph, seed):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in graph.model.parameters():
                p.add_(torch.randn(p.shape, generator=generator) * 0.01)

    def evaluate(graph):
        with torch.no_grad():
            return float(graph.model(x=x).abs().mean())

    return Subject(lambda seed: mlp_graph(), train, evaluate, lambda: [{"x": x}])


def state(graph):
    return {k: v.clone() for k, v in graph.model.state_dict().items()}


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)
