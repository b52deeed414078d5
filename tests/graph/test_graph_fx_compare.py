"""The torch.fx importer and the comparison."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from graph.backward import backward
from graph.errors import ImportFxError
from graph.evaluator import evaluate
from graph.fx_compare import CALLS, MLP, MODULES, build_mlp, from_fx, main, side_by_side


def imported_values(
    module: nn.Module, *inputs: torch.Tensor
) -> tuple[list[np.ndarray], list[torch.Tensor]]:
    """What the imported graph and torch itself make of `inputs`."""
    traced = fx.symbolic_trace(module.eval())
    found = from_fx(traced, inputs)
    names = [n.target for n in traced.graph.nodes if n.op == "placeholder"]
    given = dict(zip(names, (t.detach().numpy() for t in inputs), strict=True))
    values = evaluate(found.graph, {**found.parameters, **given})
    expected = traced(*inputs)
    ours = [values[name] for name in found.outputs]
    return ours, list(expected) if isinstance(expected, tuple) else [expected]


class Function(nn.Module):
    """A module around a function, so that fx can trace it."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.function(x, y)


FUNCTIONS: dict[str, Callable[..., object]] = {
    "arithmetic": lambda x, y: (x + y) * x - y / (y * y + 1.0),
    "numbers on the left": lambda x, y: 2.0 - x + 3.0 / (y * y + 1.0) + 2.0 * x,
    "functions": lambda x, y: torch.add(torch.mul(x, y), torch.sub(x, torch.div(y, 2.0))),
    "methods": lambda x, y: x.add(y).sub(y).mul(x).div(4.0).neg(),
    "powers": lambda x, y: (x * x + 1.0) ** 2.0 + torch.pow(x, 3.0) + (y * y + 1).pow(0.5),
    "exponentials": lambda x, y: torch.exp(x.tanh()).log() + (x * x).sqrt().exp().log(),
    "activations": lambda x, y: F.relu(x) + y.relu() + torch.tanh(x) + y.sigmoid() + F.sigmoid(x),
    "more activations": lambda x, y: torch.relu(x) + F.tanh(y) + torch.sigmoid(-x) + torch.neg(y),
    "softmaxes": lambda x, y: F.softmax(x, dim=0) + x.log_softmax(-1) + torch.softmax(y, 1),
    "log softmaxes": lambda x, y: F.log_softmax(x, dim=1) + torch.log_softmax(y, 0) + y.softmax(1),
    "reductions": lambda x, y: (x.sum(), x.mean(1), torch.sum(y, 0), y.amax(1, keepdim=True)),
    "more reductions": lambda x, y: (torch.mean(x), torch.amax(y, dim=(0, 1)), x.sum(-1)),
    "products": lambda x, y: x @ y.transpose(0, 1) + torch.mm(x, y.permute(1, 0)),
    "more products": lambda x, y: (
        x.matmul(torch.transpose(y, 0, 1)) + x.mm(torch.permute(y, (1, 0)))
    ),
    "batches": lambda x, y: torch.bmm(x.reshape(1, 3, 4), y.view(1, 4, 3)).bmm(
        torch.matmul(x, y.reshape((4, 3))).reshape(1, 3, 3)
    ),
    "shapes": lambda x, y: torch.reshape(x, (2, 6)).flatten() + torch.flatten(y),
    "broadcasts": lambda x, y: x.expand(2, -1, -1) + torch.broadcast_to(y, (2, 3, 4)),
    "method broadcasts": lambda x, y: (
        x.broadcast_to(5, 3, 4) * torch.sqrt(y * y) + torch.log(x * x)
    ),
    "linear": lambda x, y: F.linear(x, y),
    "cross-entropy": lambda x, y: F.cross_entropy(x, y.softmax(-1)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_imported_functions_agree_with_torch(name: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    ours, theirs = imported_values(Function(FUNCTIONS[name]), x, y)
    assert len(ours) == len(theirs)
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            torch.from_numpy(np.array(found)), expected, rtol=1e-12, atol=1e-12
        )


def test_the_functions_above_use_every_row_of_calls() -> None:
    used = set()
    for function in FUNCTIONS.values():
        used |= {n.target for n in fx.symbolic_trace(Function(function)).graph.nodes}
    assert set(CALLS) - used == set()


MODULE_CASES = {
    nn.Linear: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2, bias=False)),
    nn.ReLU: nn.ReLU(),
    nn.Tanh: nn.Tanh(),
    nn.Sigmoid: nn.Sigmoid(),
    nn.Softmax: nn.Softmax(dim=0),
    nn.LogSoftmax: nn.LogSoftmax(dim=1),
    nn.Flatten: nn.Flatten(0),
    nn.Identity: nn.Sequential(nn.Identity(), nn.ReLU()),
    nn.Dropout: nn.Sequential(nn.Dropout(0.5), nn.Identity()),
}


@pytest.mark.parametrize("kind", MODULE_CASES, ids=lambda kind: kind.__name__)
def test_imported_modules_agree_with_torch(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64)
    (found,), (expected,) = imported_values(MODULE_CASES[kind].double(), x)
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-12, atol=1e-12)


def test_the_module_cases_cover_the_table() -> None:
    assert {*MODULE_CASES, nn.CrossEntropyLoss} == set(MODULES)


class WithLoss(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).double()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.loss = nn.CrossEntropyLoss(**options)

    def forward(self, input: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.loss(self.mlp(input) * self.scale, labels)


def test_gradients_of_an_imported_model_are_those_of_torch() -> None:
    torch.manual_seed(0)
    model, x, labels = WithLoss(), torch.randn(5, 8).double(), torch.tensor([0, 2, 1, 1, 0])
    found = from_fx(fx.symbolic_trace(model), [x, labels])
    graph, gradients = backward(found.graph, found.outputs[0], wrt=found.parameters)
    inputs = {**found.parameters, "input": x.numpy(), "labels": labels.numpy()}
    values = evaluate(graph, inputs)
    model(x, labels).backward()
    for name, parameter in model.named_parameters():
        ours = torch.from_numpy(values[gradients[name].name])
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-12, atol=1e-12)


def test_unsupported_calls_are_named_with_the_node() -> None:
    traced = fx.symbolic_trace(Function(lambda x, y: torch.cumsum(x, 0) + y))
    x = torch.zeros(2, 2)
    message = r"node 'cumsum' \(call_function\): no operation is listed for 'cumsum'\..*'sum'"
    with pytest.raises(ImportFxError, match=message):
        from_fx(traced, [x, x])
    with pytest.raises(ImportFxError, match=r"node '0' \(call_module\).*'Conv2d'|'_0'.*'Conv2d'"):
        from_fx(fx.symbolic_trace(nn.Sequential(nn.Conv2d(1, 1, 1))), [x])


def test_unsupported_arguments_missing_examples_and_dropout_are_errors() -> None:
    x = torch.zeros(2, 2)
    odd = fx.symbolic_trace(Function(lambda x, y: torch.add(x, y, alpha=2.0)))
    with pytest.raises(
        ImportFxError, match=r"'add' is called in a way that is not supported: .*alpha"
    ):
        from_fx(odd, [x, x])
    with pytest.raises(ImportFxError, match=r"node 'y' \(placeholder\): no example input is left"):
        from_fx(odd, [x])
    with pytest.raises(ImportFxError, match="dropout is random; call eval\\(\\) first"):
        from_fx(fx.symbolic_trace(nn.Sequential(nn.Dropout())), [x])


def test_a_smoothed_loss_is_refused() -> None:
    traced = fx.symbolic_trace(WithLoss(label_smoothing=0.1))
    message = "node 'loss': only the plain mean cross-entropy is supported, not label_smoothing=0.1"
    with pytest.raises(ImportFxError, match=message):
        from_fx(traced, [torch.zeros(5, 8).double(), torch.zeros(5, dtype=torch.int64)])


def test_side_by_side_puts_nodes_of_one_name_in_one_row() -> None:
    rows = side_by_side(fx.symbolic_trace(MLP()), build_mlp()[0]).splitlines()
    for name in ("x", "hidden", "relu", "output", "softmax"):
        assert any(r.split()[1] == name and r.split("| ")[1].startswith(f"{name} ") for r in rows)


def test_the_program_runs_alone_and_agrees_with_torch(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert capsys.readouterr().out.count("agrees with torch to 1e-15: True") == 2
