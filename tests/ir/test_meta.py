import dataclasses

import pytest
import torch
import zoo

from chop import MaseGraph
from chop.errors import GraphError
from chop.ir.meta import MaseMetadata, MetadataKeyError, ValueMeta, mase_meta
from chop.nn.quantizers import Bypass, Integer


def test_subscripts_and_attributes_are_the_same_value():
    meta = MaseMetadata()
    meta["common"]["args"] = {"data_in_0": ValueMeta(shape=[2, 3], torch_dtype=torch.float32)}
    assert meta.common.args["data_in_0"].shape is meta["common"]["args"]["data_in_0"]["shape"]
    meta["common"]["args"]["data_in_0"]["type"] = "fixed"
    assert meta.common.args["data_in_0"].type == "fixed"
    assert meta.parameters["common"] is meta.common


def test_a_key_appears_once_it_has_a_value():
    value = ValueMeta(shape=[1])
    assert list(value) == ["shape", "value"]
    assert "precision" not in value
    assert value.get("precision", [8]) == [8]
    value.update({"precision": [8, 3]})
    assert dict(value.items())["precision"] == [8, 3]
    assert len(value) == len(value.keys()) == len(value.values()) == 3


def test_from_is_the_key_of_the_source_node():
    node = next(iter(MaseGraph(zoo.MLP()).nodes))
    value = ValueMeta()
    value["from"] = node
    assert value.source is node
    assert "from" in value
    assert "source" not in value


def test_a_misspelt_key_is_an_error_with_the_nearest_name():
    value = ValueMeta(shape=[1])
    with pytest.raises(MetadataKeyError, match=r"no key 'shap'. Did you mean 'shape'\?"):
        value["shap"]
    with pytest.raises(MetadataKeyError, match="no key 'widht'"):
        value["widht"] = 3
    with pytest.raises(KeyError, match=r"'precision' has no value yet. Has: shape"):
        value["precision"]


def test_a_node_without_metadata_names_the_pass_to_run():
    node = next(iter(MaseGraph(zoo.MLP()).nodes))
    with pytest.raises(GraphError, match=r"node 'x': no MASE metadata. Run init_metadata"):
        mase_meta(node)


FLOATS = {"shape": [2], "torch_dtype": torch.float32, "type": "float", "precision": [32]}


def test_a_format_travels_whole_and_type_and_precision_tell_of_it():
    value, unsigned = ValueMeta(**FLOATS), Integer(8, 3, is_signed=False, rounding="floor")
    value.set_format(unsigned, is_applied=True)
    assert (value["type"], value["precision"]) == ("fixed", [8, 3])
    assert (value.format, value.is_applied) == (unsigned, True)
    value.set_format(Bypass(), is_applied=True)
    assert (value["type"], value["precision"]) == ("float", [32])
    assert (value.format, value.is_applied) == (None, False)


@pytest.mark.parametrize("keys", [("type", "precision"), ("precision", "type")])
def test_type_and_precision_set_by_hand_mean_a_format_that_is_applied(keys):
    value, said = ValueMeta(**FLOATS), {"type": "fixed", "precision": [8, 3]}
    for key in keys:
        assert (value.format, value.is_applied) == (None, False)
        value[key] = said[key]
    assert (value.format, value.is_applied) == (Integer(8, 3), True)


def test_the_format_is_no_key_of_the_metadata():
    value = ValueMeta(**FLOATS)
    value.set_format(Integer(8, 3), is_applied=True)
    assert list(value) == ["shape", "torch_dtype", "type", "precision", "value"]


def test_type_and_precision_are_kept_nowhere_but_in_the_format():
    value = ValueMeta(shape=[2], torch_dtype=torch.float16)
    assert (value["type"], value["precision"]) == ("float", [16])
    value["type"], value["precision"] = "fixed", [8, 3]
    assert value.format == Integer(8, 3) and not {"type", "precision", "_said"} & set(vars(value))
    value.set_format(Integer(6, 2), is_applied=False)
    assert (value["type"], value["precision"]) == ("fixed", [6, 2])
    value["precision"] = [6, 2]  # said again: still not applied
    assert not value.is_applied


def test_words_that_name_no_format_are_kept_as_said():
    value = ValueMeta(**FLOATS)
    value["type"] = "posit"
    assert (value["type"], value["precision"], value.format) == ("posit", [32], None)
    other = ValueMeta(**FLOATS)
    other.follow(value, is_applied=False)
    assert other["type"] == "posit"
    value["type"] = "float"
    assert "_said" not in vars(value)
    assert ValueMeta(type="integer", value=3)["type"] == "integer"


def test_a_record_that_was_pickled_with_its_type_is_read():
    value = ValueMeta(shape=[2], torch_dtype=torch.float32)
    value.__setstate__({"type": "fixed", "precision": [8, 3], "format": None})
    assert (value.format, value["type"], value["precision"]) == (Integer(8, 3), "fixed", [8, 3])
    made = dataclasses.replace(value, is_applied=False)
    assert (made.format, made.is_applied) == (Integer(8, 3), False)


def test_a_pickle_of_an_earlier_version_keeps_what_was_set_by_hand():
    value = ValueMeta(shape=[2], torch_dtype=torch.float32)
    value.type = "posit"
    state = dict(vars(value))
    earlier = {"_said" if key == "_by_hand" else key: each for key, each in state.items()}
    assert "_said" in earlier
    other = ValueMeta()
    other.__setstate__(earlier)
    assert (other.type, other.precision) == (value.type, value.precision) == ("posit", [32])
