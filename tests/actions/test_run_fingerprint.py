"""Equal contents have equal fingerprints, wherever they lie; others have others."""

import copy

import datasets
import torch

import chop.passes as passes
from chop import MaseGraph
from chop.actions.run_fingerprint import data_fingerprint, graph_fingerprint
from chop.dataset import ArrayDataset, TokenArrays, get_dataset
from chop.models import MLP


def graph():
    torch.manual_seed(0)
    found, _ = passes.init_metadata_analysis_pass(MaseGraph(MLP(), dummy_in=torch.zeros(2, 64)))
    return passes.add_common_metadata_analysis_pass(found)[0]


def test_a_copy_and_a_checkpoint_are_the_same_model(tmp_path):
    one = graph()
    one.export(tmp_path / "m")
    same = [copy.deepcopy(one), MaseGraph.from_checkpoint(tmp_path / "m"), graph()]
    same[0].model.train()
    assert {graph_fingerprint(each) for each in [one, *same]} == {graph_fingerprint(one)}


def test_one_weight_or_one_setting_makes_another_model():
    changed, wider, narrow = graph(), graph(), graph()
    with torch.no_grad():
        next(changed.model.parameters()).view(-1)[0] += 1e-6
    for each, width in ((wider, 8), (narrow, 7)):
        config = {"name": "mxint", "data_in_width": width}
        passes.quantize_transform_pass(each, {"by": "type", "linear": {"config": config}})
    assert len({graph_fingerprint(each) for each in (graph(), changed, wider, narrow)}) == 4


def test_rows_decide_not_the_buffers_that_hold_them():
    text = datasets.Dataset.from_dict({"t": ["a", "bc", "d"], "ids": [[1], [2, 3], []]})
    back = text.select([2, 1, 0]).select([2, 1, 0])
    other = text.select([0, 2, 1])
    assert data_fingerprint({"train": text}) == data_fingerprint({"train": back})
    assert data_fingerprint({"train": text}) != data_fingerprint({"train": other})
    assert data_fingerprint(get_dataset("sequences")) == data_fingerprint(get_dataset("sequences"))


def test_every_kind_of_split_has_a_fingerprint():
    rows = [{"x": 1, "labels": 0}, {"x": 2, "labels": 1}]
    kinds = [
        ArrayDataset({"x": torch.tensor([1, 2]), "labels": torch.tensor([0, 1])}),
        TokenArrays(torch.arange(2).numpy(), torch.arange(3).numpy(), torch.arange(2).numpy()),
        rows,
    ]
    assert len({data_fingerprint({"train": each}) for each in kinds}) == 3
    assert data_fingerprint({"train": rows}) != data_fingerprint({"train": rows[::-1]})
