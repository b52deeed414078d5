import pytest

from chop.ir.meta import HardwareMeta, MaseMetadata, MetadataKeyError, ValueMeta


def test_a_record_answers_subscripts_and_attributes_alike():
    value = ValueMeta(shape=[2])
    value["type"] = "fixed"
    assert value["shape"] is value.shape
    assert value.type == "fixed"


def test_a_key_is_there_once_it_has_a_value():
    record = HardwareMeta(toolchain="INTERNAL_RTL")
    assert list(record) == ["toolchain"]
    assert len(record) == 1
    assert "toolchain" in record
    assert "module" not in record
    assert record.get("module", "NA") == "NA"
    assert record.get("toolchain") == "INTERNAL_RTL"


def test_a_misspelt_key_is_an_error_that_names_the_nearest():
    with pytest.raises(MetadataKeyError, match="no key 'comon'. Did you mean 'common'?"):
        MaseMetadata()["comon"]


def test_a_key_without_a_value_is_an_error_that_says_so():
    with pytest.raises(MetadataKeyError, match="'module' has no value yet. Has: toolchain"):
        HardwareMeta(toolchain="x")["module"]
