import operator

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from chop.ir.node_arguments import (
    describe_result,
    describe_tensor,
    is_plain,
    named_arguments,
)


def arguments(kind, target, *args, **kwargs):
    graph = fx.Graph()
    inputs = [graph.placeholder(f"p{i}") for i in range(4)]
    swap = [inputs[a] if type(a) is int and a < 0 else a for a in args]
    node = graph.create_node(kind, target, tuple(swap), kwargs)
    return [name for name, _ in named_arguments(node)], [str(v) for _, v in named_arguments(node)]


X = -4  # stands for the first placeholder


@pytest.mark.parametrize(
    ("kind", "target", "args", "names"),
    [
        ("call_method", "view", (X, 2, 3), ["self", "size"]),
        ("call_method", "view", (X, (2, 3)), ["self", "size"]),
        ("call_method", "permute", (X, 0, 2, 1), ["self", "dims"]),
        ("call_method", "sum", (X, 1), ["self", "dim"]),
        ("call_method", "max", (X, 1), ["self", "dim"]),
        ("call_method", "max", (X, X), ["self", "other"]),
        ("call_method", "to", (X, torch.float16), ["self", "dtype"]),
        ("call_method", "size", (X, 0), ["self", "dim"]),
        ("call_method", "masked_fill", (X, X, 0.0), ["self", "mask", "value"]),
        ("call_function", torch.flatten, (X, 1), ["self", "start_dim"]),
        ("call_function", torch.cat, ([X], 1), ["tensors", "dim"]),
        ("call_function", F.relu, (X, True), ["input", "inplace"]),
        ("call_function", F.layer_norm, (X, (4,), X), ["input", "normalized_shape", "weight"]),
        ("call_function", F.linear, (X, X, X), ["input", "weight", "bias"]),
        ("call_function", operator.getitem, (X, 0), ["input", "index"]),
        ("call_function", torch.einsum, ("ij,jk", X, X), ["equation", "operands"]),
        ("call_function", getattr, (X, "shape"), ["object", "name"]),
    ],
)
def test_positional_arguments_go_by_torchs_names(kind, target, args, names):
    assert arguments(kind, target, *args)[0] == names


def test_a_list_written_out_is_one_argument():
    assert arguments("call_method", "view", X, 2, 3)[1][1] == "(2, 3)"


def test_keywords_keep_their_name():
    names, values = arguments("call_function", torch.flatten, X, start_dim=1, end_dim=-1)
    assert (names, values) == (["self", "start_dim", "end_dim"], ["p0", "1", "-1"])


def test_a_function_without_a_signature_numbers_its_arguments():
    assert arguments("call_function", zip, X, 1)[0] == ["arg_0", "arg_1"]


def test_a_module_is_named_by_its_forward():
    model = fx.symbolic_trace(nn.Sequential(nn.Embedding(3, 2)))
    node = next(n for n in model.graph.nodes if n.op == "call_module")
    assert [name for name, _ in named_arguments(node)] == ["input"]


KINDS = {
    "float": (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    "integer": (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16),
    "complex": (torch.complex128, torch.complex64, torch.complex32),
    "bool": (torch.bool,),
}


@pytest.mark.parametrize(("kind", "dtype"), [(k, d) for k, dtypes in KINDS.items() for d in dtypes])
def test_number_formats_have_the_kind_and_the_width_of_the_dtype(kind, dtype):
    value = describe_tensor(torch.zeros(2, dtype=dtype))
    assert value.type == kind
    assert value.precision == [1 if dtype is torch.bool else 8 * dtype.itemsize]
    assert value.torch_dtype is dtype


def test_nested_results_are_numbered_in_order():
    a, b = torch.zeros(1), torch.zeros(2)
    found = describe_result({"x": (a, [b]), "n": 3})
    assert {name: value.shape for name, value in found.items()} == {
        "data_out_0": [1],
        "data_out_1": [2],
    }


def test_a_result_that_is_not_a_tensor_keeps_its_value():
    found = describe_result(torch.Size([2, 3]))["data_out_0"]
    assert found.value == (2, 3)
    assert not found.is_tensor


def test_only_literals_are_plain():
    assert is_plain((1, None, [torch.float32, {"a": slice(0, 2)}], ...))
    assert not is_plain(object())
    assert not is_plain([object()])
