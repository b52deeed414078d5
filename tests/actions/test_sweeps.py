import functools

import pytest
import torch

from chop import MaseGraph
from chop.actions import SWEEPS, get_trainer, sweep, trained_subject
from chop.actions.records import read_records
from chop.dataset import get_dataset
from chop.errors import RegistryError
from chop.models import MLP

pytest.importorskip("accelerate", reason="needs the extra 'train': pip install 'masegraph[train]'")
QUICK = {"learning_rate": 3e-3, "per_device_train_batch_size": 32, "disable_tqdm": True}
QUICK |= {"per_device_eval_batch_size": 512}
FEW = {
    "fixed_point_width": (8,),
    "integer_bits": (3,),
    "fraction_bits": (3,),
    "sparsity": (0.7,),
    "lora_rank": (2,),
}
"""A point of each sweep."""


@functools.cache
def subject():
    torch.manual_seed(0)
    graph = MaseGraph(MLP(), dummy_in={"x": torch.zeros(2, 1, 8, 8)})
    data = get_dataset("digits")
    data["train"] = data["train"].select(range(384))
    get_trainer(graph.model, data, num_train_epochs=8, **QUICK).train()
    return trained_subject(graph, data, num_train_epochs=1, **QUICK)


def test_every_sweep_has_points_to_test():
    assert set(FEW) == set(SWEEPS)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_measures_every_point_and_training_does_not_hurt(name, tmp_path):
    records = sweep(name, subject(), tmp_path, values=FEW[name])
    assert records == read_records(tmp_path / f"{name}.jsonl")
    assert len(records) == len(SWEEPS[name].points([0], FEW[name]))
    assert (tmp_path / f"{name}.csv").is_file()
    gained = [record["after"] - record["before"] for record in records]
    assert sum(gained) / len(gained) > -0.02


@pytest.mark.slow
def test_sixteen_fitted_bits_lose_nothing_and_four_half_split_bits_much(tmp_path):
    records = sweep("fixed_point_width", subject(), tmp_path, values=(4, 16))
    accuracy = {(r["split"], r["width"]): r["before"] for r in records}
    reference = subject().evaluate(subject().graph(0))
    assert abs(accuracy["fitted", 16] - reference) < 0.005
    assert accuracy["half", 4] < reference - 0.05
    assert accuracy["fitted", 4] > accuracy["half", 4]


def test_pruning_by_magnitude_beats_chance(tmp_path):
    records = sweep("sparsity", subject(), tmp_path, values=(0.5,))
    accuracy = {record["method"]: record["before"] for record in records}
    assert accuracy["l1-norm"] > accuracy["random"] + 0.05


def test_a_sweep_of_adapters_records_how_many_parameters_train(tmp_path):
    (record,) = sweep("lora_rank", subject(), tmp_path, values=(2,))
    assert record["trainable"] == 2 * (64 + 64 + 64 + 64 + 64 + 10)
    assert record["share"] == record["trainable"] / record["total"]


def test_a_sweep_leaves_the_graph_it_starts_from_alone(tmp_path):
    before = subject().evaluate(subject().graph(0))
    sweep("integer_bits", subject(), tmp_path, values=(1,))
    assert subject().evaluate(subject().graph(0)) == before


def test_points_cover_seeds_variants_and_values():
    points = SWEEPS["sparsity"].points([0, 1, 2])
    assert len(points) == 3 * 2 * 9
    assert points[0] == {"sweep": "sparsity", "method": "random", "seed": 0, "sparsity": 0.1}


def test_an_unknown_sweep_names_the_nearest(tmp_path):
    with pytest.raises(RegistryError, match=r"Unknown sweep 'sparcity'. Did you mean 'sparsity'"):
        sweep("sparcity", subject(), tmp_path)
