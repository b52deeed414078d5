"""`Gradient` of ONNX's preview of training: the derivatives as further nodes.

To differentiate another operator, add a row to `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from chop.export.onnx_import.call import OWN, Call, operator
from chop.export.onnx_import.onnx_file import MAIN, OnnxNode
from chop.files import shown

TRAINING = "ai.onnx.preview.training"
"""Domain of `Gradient`."""


def is_gradient(node: OnnxNode) -> bool:
    """Return True for a node that `gradient_nodes` replaces."""
    return node.domain == TRAINING and node.operator == "Gradient"


def gradient_nodes(node: OnnxNode, earlier: Iterable[OnnxNode]) -> list[OnnxNode]:
    """Return nodes that compute the outputs of a `Gradient`; `earlier`: the nodes before it.

    The outputs are the derivatives of the sum over `y` by each of `xs`. Values that depend on no
    `xs` are constants.
    """
    xs, others = (list(node.attributes.get(key, ())) for key in ("xs", "zs"))
    y = node.attributes.get("y", "")
    if list(node.inputs) != [*xs, *others]:
        raise ValueError(
            f"its inputs are {shown(list(node.inputs))}. Allowed: the values of its attributes xs "
            f"and zs, {shown([*xs, *others])}"
        )
    derivation = _Derivation(node)
    derivation.derive([each for each in earlier if each.outputs], xs, y)
    for x, output in zip(xs, node.outputs, strict=False):
        if output:
            derivation.finish(x, output)
    return derivation.nodes


class _Derivation:
    """Nodes of a derivation; `gradients` has the name of the gradient of each value."""

    def __init__(self, node: OnnxNode) -> None:
        self.node = node
        self.nodes: list[OnnxNode] = []
        self.gradients: dict[str, str] = {}

    def derive(self, earlier: Sequence[OnnxNode], xs: Sequence[str], y: str) -> None:
        """Add the nodes from `y` back to `xs`."""
        used, depends = [], set(xs)
        for each in earlier:
            if depends.intersection(each.reads) and not depends.intersection(each.outputs):
                depends.update(each.outputs)
                used.append(each)
        if y not in depends:
            return
        self.gradients[y] = self.add("Fill", y, value=1.0, domain=OWN)
        for each in reversed(used):
            if any(name in self.gradients for name in each.outputs):
                self._step_back(each, depends)

    def _step_back(self, node: OnnxNode, depends: set[str]) -> None:
        """Add the nodes for the gradients of one node's inputs."""
        rule = RULES.get(node.operator) if node.domain == MAIN else None
        if rule is None or len(node.outputs) != 1:
            raise ValueError(f"{node} has no derivative. Known: {', '.join(sorted(RULES))}")
        parts = rule(self.add, node, self.gradients[node.outputs[0]])
        for name, part in zip(node.inputs, parts, strict=True):
            if name in depends:
                own = self.add("SumTo", part(), name, domain=OWN)
                earlier = self.gradients.get(name)
                self.gradients[name] = own if earlier is None else self.add("Add", earlier, own)

    def finish(self, x: str, output: str) -> None:
        """Add the node that makes an output; a value that `y` does not depend on has zeros."""
        if x not in self.gradients:
            self.gradients[x] = self.add("Fill", x, value=0.0, domain=OWN)
        self.add("Identity", self.gradients[x], output=output)

    def add(
        self, operator: str, *inputs: str, output: str = "", domain: str = MAIN, **attributes: float
    ) -> str:
        """Add a node, and return the name of its output."""
        output = output or f"{self.node.outputs[0]}:gradient_{len(self.nodes)}"
        new = replace(
            self.node,
            operator=operator,
            domain=domain,
            version=LATEST,
            inputs=inputs,
            outputs=(output,),
            attributes=attributes,
        )
        self.nodes.append(new)
        return output


LATEST = 13
"""Opset of the nodes that are added."""
Add = Callable[..., str]
Part = Callable[[], str]
"""Function that adds the nodes of one input's gradient, and returns its name."""


def _unary(rule: Callable[[Add, str, str, str], str]) -> Callable[[Add, OnnxNode, str], list[Part]]:
    """Return the rule of an operator of one input: of nodes, input, output and gradient."""
    return lambda add, node, g: [lambda: rule(add, node.inputs[0], node.outputs[0], g)]


def _matmul(add: Add, node: OnnxNode, g: str) -> list[Part]:
    a, b = node.inputs
    return [
        lambda: add("MatMul", g, add("Turned", b, domain=OWN)),
        lambda: add("MatMul", add("Turned", a, domain=OWN), g),
    ]


def _divide(add: Add, node: OnnxNode, g: str) -> list[Part]:
    b, y = node.inputs[1], node.outputs[0]
    return [lambda: add("Div", g, b), lambda: add("Neg", add("Div", add("Mul", g, y), b))]


def _multiply(add: Add, node: OnnxNode, g: str) -> list[Part]:
    a, b = node.inputs
    return [lambda: add("Mul", g, b), lambda: add("Mul", g, a)]


RULES: dict[str, Callable[[Add, OnnxNode, str], list[Part]]] = {
    "Add": lambda add, node, g: [lambda: g, lambda: g],
    "Sub": lambda add, node, g: [lambda: g, lambda: add("Neg", g)],
    "Mul": _multiply,
    "Div": _divide,
    "MatMul": _matmul,
    "Identity": _unary(lambda add, x, y, g: g),
    "Neg": _unary(lambda add, x, y, g: add("Neg", g)),
    "Exp": _unary(lambda add, x, y, g: add("Mul", g, y)),
    "Log": _unary(lambda add, x, y, g: add("Div", g, x)),
    "Sqrt": _unary(lambda add, x, y, g: add("Div", g, add("Add", y, y))),
    "Reciprocal": _unary(lambda add, x, y, g: add("Neg", add("Mul", g, add("Mul", y, y)))),
    "Sin": _unary(lambda add, x, y, g: add("Mul", g, add("Cos", x))),
    "Cos": _unary(lambda add, x, y, g: add("Neg", add("Mul", g, add("Sin", x)))),
    "Tanh": _unary(lambda add, x, y, g: add("Sub", g, add("Mul", g, add("Mul", y, y)))),
    "Sigmoid": _unary(lambda add, x, y, g: add("Mul", g, add("Sub", y, add("Mul", y, y)))),
    "Relu": _unary(lambda add, x, y, g: add("Mul", g, add("Sign", y))),
}
"""Operator -> its rule: of nodes to add, the node and its gradient, one part for each input."""


@operator("Fill", domain=OWN)
def _fill(call: Call) -> Tensor:
    """Return a tensor of one number in the shape of the input."""
    return torch.full_like(call.tensor(0), call.attribute("value"))


@operator("Turned", domain=OWN)
def _turned(call: Call) -> Tensor:
    """Return a matrix, or a batch of them, transposed."""
    matrix = call.tensor(0)
    if matrix.dim() < 2:
        raise ValueError("the derivative of MatMul of a vector. Allowed: matrices")
    return matrix.transpose(-1, -2)


@operator("SumTo", domain=OWN)
def _sum_to(call: Call) -> Tensor:
    """Return a gradient summed over the dimensions along which its operand was repeated."""
    gradient, sizes = call.tensor(0), call.tensor(1).shape
    added = gradient.dim() - len(sizes)
    axes = [
        d
        for d in range(gradient.dim())
        if d < added or (sizes[d - added] == 1 and gradient.shape[d] != 1)
    ]
    summed = gradient.sum(axes, keepdim=True) if axes else gradient
    return summed.reshape(sizes) if added else summed
