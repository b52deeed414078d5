"""How dimensions are carried: what structured pruning and sharding make of every op."""

import dimension_cases
import pytest
import torch
from torch import fx

from chop.distributed.local_calls import LOCAL_KERNELS
from chop.distributed.program import program_of, references
from chop.errors import RegistryError
from chop.ir.node_arguments import tensors_in
from chop.ir.ops import OPS, Op, node_module


@pytest.fixture(scope="module")
def told():
    return dimension_cases.told()


def test_every_op_with_a_rule_has_a_case():
    ops = {case.op for case in dimension_cases.CASES}
    with_rule = {op.name for op in OPS.values() if op.dims is not None}
    with_cache = {"update_past", "update_cross"}  # in graphs captured with a cache alone
    assert with_rule == ops | with_cache | {"finfo"}  # which takes no tensor


@pytest.mark.parametrize("consumer", [0, 1], ids=["pruning", "sharding"])
def test_what_is_made_of_every_op_is_as_it_was(told, consumer):
    pinned = dimension_cases.pinned()
    assert list(told) == list(pinned)
    changed = {
        name: (pinned[name][consumer], told[name][consumer])
        for name in told
        if told[name][consumer] != pinned[name][consumer]
    }
    assert changed == {}


class Parts(fx.Interpreter):
    """Runs every node whole, and on the two parts of each way to split it."""

    def __init__(self, graph):
        super().__init__(graph.model)
        self.values = {value.name: value for value in program_of(graph).values}
        self.wrong, self.count = [], 0

    def run_node(self, n):
        whole = super().run_node(n)
        value = self.values.get(n.name)
        if n.op.startswith("call") and value is not None and is_its_own_kernel(value.op):
            for way in value.layouts(2)[1:]:
                self.count += 1
                parts = [self.on_part(n, value.op, way, device) for device in (0, 1)]
                # sums are made in another order
                if not torch.allclose(joined(parts, way.result), flat(whole), atol=1e-5):
                    self.wrong.append(f"{value.op.name} {n.args} {n.kwargs}: {way}")
        return whole

    def on_part(self, node, op, way, device):
        """What one of two devices computes."""
        names = iter([name for name, _ in references(node, op)])

        def read(source):
            value = self.env[source]
            held = isinstance(value, torch.Tensor | tuple)
            return local(value, way.operands.get(next(names), "R"), device) if held else value

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), read)
        if node.op != "call_module":
            return getattr(self, node.op)(node.target, args, kwargs)
        module = node_module(node)
        own = {
            name: local(p, way.operands.get(name, "R"), device)
            for name, p in module.named_parameters()
        }
        return torch.func.functional_call(module, own, args, kwargs)


def is_its_own_kernel(op):
    """Whether a device computes a part by the op itself, and two calls give the same."""
    return op.dims not in LOCAL_KERNELS and not op.is_random


def local(value, layout, device):
    if isinstance(value, tuple):
        return tuple(local(each, layout, device) for each in value)
    if layout == "P":
        return value if device == 0 else torch.zeros_like(value)
    return value if layout == "R" else value.chunk(2, int(layout[1:]))[device]


def flat(result):
    return torch.cat([t.double().reshape(-1) for t in tensors_in(result)])


def joined(parts, layout):
    pairs = zip(*(list(tensors_in(part)) for part in parts), strict=True)
    if layout == "P":
        return flat([a + b for a, b in pairs])
    return flat([torch.cat(pair, int(layout[1:])) for pair in pairs])


def test_every_split_computes_the_whole():
    graph = dimension_cases.captured(dimension_cases.CASES)
    parts = Parts(graph)
    with torch.no_grad():
        parts.run(torch.tensor([[1, 2], [3, 4]]))
    assert parts.wrong == []
    assert parts.count > 400


def test_an_unknown_dimension_rule_is_an_error_that_names_the_nearest():
    with pytest.raises(
        RegistryError, match=r"op 'mine': unknown dimension rule 'elementwize'. Did you mean 'elem"
    ):
        Op("mine", "module", dims="elementwize")
