import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph
from chop.errors import RegistryError
from chop.ir.common import MASE_TYPES, OPS_BY_TYPE
from chop.ir.ops import (
    OPS,
    Op,
    Shapes,
    computes,
    find_op,
    op_of_function,
    op_of_method,
    op_of_module,
)
from chop.ir.ops.by_name import layer, tensor_op


def test_there_are_seven_types_and_every_op_has_one():
    assert len(MASE_TYPES) == 7
    assert sum(map(len, OPS_BY_TYPE.values())) == len(OPS)
    assert all(OPS_BY_TYPE.values())


def test_module_and_function_of_one_op_are_one_row():
    assert op_of_module(nn.ReLU()) is op_of_function(F.relu) is op_of_function(torch.relu)
    assert op_of_function(torch.matmul) is op_of_function(operator.matmul) is op_of_method("mm")
    assert op_of_module(nn.BatchNorm2d(3)).type == "module"
    assert op_of_function(torch.cat).type == "builtin_func"
    assert op_of_function(torch.flatten).type == "implicit_func"


def test_a_subclass_has_the_op_of_its_nearest_base():
    class MyLinear(nn.Linear):
        pass

    assert op_of_module(MyLinear(2, 2)).name == "linear"
    assert op_of_module(nn.Sequential()) is None


def test_macs_of_a_linear_and_a_convolution_by_hand():
    linear = OPS["linear"]
    shapes = Shapes(((5, 8),), ((5, 3),), {"weight": (3, 8)})
    assert (linear.macs_of(shapes), linear.flops(shapes)) == (5 * 3 * 8, 2 * 5 * 3 * 8)
    convolution = Shapes(((1, 4, 6, 6),), ((1, 8, 4, 4),), {"weight": (8, 4, 3, 3)})
    assert OPS["conv2d"].macs_of(convolution) == 8 * 4 * 4 * 4 * 3 * 3


def test_custom_ops_name_the_users_modules_and_functions():
    class Mine(nn.Module):
        def forward(self, x):
            return x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.mine = Mine()

        def forward(self, x):
            return self.mine(x)

    custom = {"modules": {Mine: {"mase_op": "mine"}}}
    graph = MaseGraph(Model(), dummy_in=torch.ones(2), custom_ops=custom)
    node = next(n for n in graph.nodes if n.op == "call_module")
    assert find_op(node) is None
    assert find_op(node, graph.custom_ops).name == "mine"
    row = Op("own", "module")
    assert find_op(node, {"modules": {Mine: row}}) is row


def test_a_misspelt_name_in_a_column_is_an_error():
    with pytest.raises(RegistryError, match=r"op 'mine': torch has nothing of the name 'reluu'"):
        layer("mine", "", "reluu")
    with pytest.raises(RegistryError, match=r"op 'mine': torch has nothing of the name 'Lineer'"):
        layer("mine", "Lineer")
    with pytest.raises(RegistryError, match=r"op 'mine': torch has nothing of the name 'ad'"):
        tensor_op("mine", "ad")
    with pytest.raises(
        RegistryError, match=r"op 'mine': unknown type 'modul'. Did you mean 'module'"
    ):
        Op("mine", "modul")
    assert tensor_op("mine", "add no_such_name?").methods == ("add",)
    with pytest.raises(RegistryError, match=r"op 'mine': computes with 'weight', which is none of"):
        Op("mine", "module", compute=computes("input* weight*", F.linear), parameters=("wieght",))
    with pytest.raises(RegistryError, match=r"prefer names 'othr'. Did you mean 'other'"):
        computes("input* other*", torch.matmul, prefer={"othr": "weight"})
