"""Metadata records are dicts, and whole ones: every answer comes from the fields."""

import copy
import json
import pickle

import pytest
import torch
import zoo

import chop.passes as passes
from chop import MaseGraph
from chop.ir.meta import MaseMetadata, MetadataKeyError, ValueMeta


def test_a_record_is_a_dict_whose_every_answer_comes_from_its_fields():
    value = ValueMeta(shape=[1], precision=[8, 3])
    assert isinstance(value, dict)
    as_dict = {"shape": [1], "precision": [8, 3], "value": None}
    assert dict(value) == {**value} == value | {} == {} | value == as_dict == value
    assert value != {} and value == ValueMeta(shape=[1], precision=[8, 3]) != ValueMeta(shape=[1])
    assert json.loads(json.dumps(value)) == as_dict
    assert list(reversed(value)) == ["value", "precision", "shape"]
    assert value.setdefault("type", "fixed") == value.type == "fixed"
    value |= {"type": "float"}
    assert value.pop("type") == "float" and value.type is None and "type" not in value
    assert value.pop("type", "none") == "none"
    del value["shape"]
    value.clear()
    assert value == ValueMeta() and list(value) == ["value"]


def test_what_every_record_has_cannot_be_removed():
    with pytest.raises(MetadataKeyError, match="MaseMetadata: 'common' cannot be removed"):
        del MaseMetadata()["common"]
    with pytest.raises(MetadataKeyError, match="ValueMeta: 'value' cannot be removed"):
        del ValueMeta()["value"]


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda v: v.copy(), lambda v: pickle.loads(pickle.dumps(v))]
)
def test_a_copied_record_is_equal_and_its_own(again):
    value = ValueMeta(shape=[1])
    other = again(value)
    assert type(other) is ValueMeta and other == value
    other["type"] = "fixed"
    assert value.type is None


def test_records_come_back_from_a_checkpoint_as_records(tmp_path):
    mg = MaseGraph(zoo.MLP(), dummy_in={"x": torch.randn(2, 16)})
    mg, _ = passes.add_common_metadata_analysis_pass(passes.init_metadata_analysis_pass(mg)[0])
    mg.export(tmp_path / "mlp")
    for old, new in zip(mg.nodes, MaseGraph.from_checkpoint(tmp_path / "mlp").nodes, strict=True):
        assert type(new.meta["mase"]) is MaseMetadata
        for name, value in old.meta["mase"].common.results.items():
            again = new.meta["mase"].common.results[name]
            assert type(again) is ValueMeta
            assert again.shape == value.shape
