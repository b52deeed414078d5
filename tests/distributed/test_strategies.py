"""What each rule allows."""

import pytest

from chop.distributed.strategies import WHOLE, strategies
from chop.ir.dims import DIMENSION_RULES
from chop.ir.dims import ShapedCall as Call


def names(call: Call, devices: int = 2) -> dict[str, tuple[dict[str, str], str]]:
    return {s.name: (dict(s.operands), s.result) for s in strategies(call, devices)}


@pytest.mark.parametrize("rule", sorted(DIMENSION_RULES))
def test_whole_comes_first_and_is_all_where_nothing_divides(rule):
    call = Call(rule, {"data_in_0": (3, 5), "weight": (7, 5)}, ((3, 7),), {"dim": -1})
    assert strategies(call, 2) == [WHOLE]


def test_linear_splits_rows_columns_and_the_inner_dimension():
    shapes = {"data_in_0": (4, 6, 8), "weight": (2, 8), "bias": (2,)}
    assert names(Call("linear", shapes, ((4, 6, 2),))) == {
        "replicate": ({}, "R"),
        "split 0": ({"data_in_0": "S0"}, "S0"),
        "split 1": ({"data_in_0": "S1"}, "S1"),
        "column": ({"weight": "S0", "bias": "S0"}, "S2"),
        "row": ({"data_in_0": "S2", "weight": "S1", "bias": "P"}, "P"),
    }


def test_a_split_that_does_not_come_out_even_is_left_out():
    shapes = {"data_in_0": (3, 8), "weight": (6, 8)}
    assert set(names(Call("linear", shapes, ((3, 6),)), 4)) == {"replicate", "row"}


def test_embedding_splits_by_vocabulary_and_by_hidden():
    found = names(Call("embedding", {"data_in_0": (3, 5), "weight": (10, 8)}, ((3, 5, 8),)))
    assert found["vocabulary"] == ({"weight": "S0"}, "P")
    assert found["hidden"] == ({"weight": "S1"}, "S2")


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"sparse": True}])
def test_embedding_that_looks_at_its_whole_table_is_whole(option):
    shapes = {"data_in_0": (4, 5), "weight": (10, 8)}
    assert set(names(Call("embedding", shapes, ((4, 5, 8),), option))) == {"replicate"}


def test_a_loss_of_classes_is_a_sum_over_its_rows():
    shapes = {"data_in_0": (4, 10), "data_in_1": (4,)}
    found = names(Call("class_loss", shapes, ((),)))
    assert found == {"replicate": ({}, "R"), "split 0": ({"data_in_0": "S0"}, "P")}
    assert set(names(Call("class_loss", shapes, ((4,),)))) == {"replicate"}
    assert set(names(Call("class_loss", shapes, ((),), {"reduce": False}))) == {"replicate"}


def test_softmax_needs_its_dimension_whole():
    found = names(Call("along_dimension", {"data_in_0": (2, 4)}, ((2, 4),), {"dim": -1}))
    assert set(found) == {"replicate", "split 0"}


def test_layer_norm_needs_its_last_dimensions_whole():
    call = Call("norm_last", {"data_in_0": (2, 4, 8)}, ((2, 4, 8),), {"normalized_shape": (4, 8)})
    assert set(names(call)) == {"replicate", "split 0"}


def test_elementwise_reads_a_broadcast_operand_whole():
    shapes = {"data_in_0": (2, 4, 6), "data_in_1": (4, 1)}
    found = names(Call("elementwise", shapes, ((2, 4, 6),)))
    assert found["split 1"] == ({"data_in_0": "S1", "data_in_1": "S0"}, "S1")
    assert found["split 2"] == ({"data_in_0": "S2", "data_in_1": "R"}, "S2")


def test_heads_carry_the_split_of_the_hidden_dimension():
    found = names(Call("reshape", {"data_in_0": (2, 5, 12)}, ((2, 5, 4, 3),)))
    assert found["split 2"] == ({"data_in_0": "S2"}, "S2")


def test_a_split_within_a_merged_dimension_is_not_carried():
    found = names(Call("reshape", {"data_in_0": (2, 4, 3)}, ((8, 3),)))
    assert set(found) == {"replicate", "split 0"}


def test_attention_splits_batch_and_heads_with_a_shared_mask():
    heads = dict.fromkeys(("data_in_0", "data_in_1", "data_in_2"), (2, 4, 6, 8))
    found = names(Call("attention", heads | {"data_in_3": (2, 1, 6, 6)}, ((2, 4, 6, 8),)))
    assert set(found) == {"replicate", "split 0", "split 1"}
    assert found["split 1"][0]["data_in_3"] == "R"


def test_matmul_over_the_inner_dimension_gives_a_sum():
    found = names(Call("matmul", {"data_in_0": (6, 4), "data_in_1": (4, 2)}, ((6, 2),)))
    assert found["inner"] == ({"data_in_0": "S1", "data_in_1": "S0"}, "P")


def test_getitem_keeps_what_it_takes_whole():
    index = (slice(None), 0)
    found = names(Call("getitem", {"data_in_0": (2, 6, 8)}, ((2, 8),), {"index": index}))
    assert found["split 1"] == ({"data_in_0": "S2"}, "S1")
    assert len(found) == 3


def test_an_unknown_op_is_whole():
    assert strategies(Call(None, {"data_in_0": (2, 2)}, ((2, 2),)), 2) == [WHOLE]
