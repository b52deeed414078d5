"""A changed graph and its float reference, run on the same batches layer by layer.

Errors of the layers already rounded reach the layers behind them. Who knows what a layer was given
before can make up for them too: the run without formats computes with the weights there were.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, fx, nn

from chop.ir.graph import MaseGraph
from chop.nn.modules.masked import stored_weight
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Bypass
from chop.passes.ptq.observe.layerwise_run import LayerwiseRun


class PairedRun:
    """Two runs of one graph: with formats and the weights of now, without and with those before.

    with PairedRun(graph, batches, "gptq.data") as run:
        for node, layer in layers:
            for x, float_x in run.operands(node): ...
            run.remember(layer)
            layer.weight = ...

    `weights` are those before, of layers whose weights have changed already.
    """

    def __init__(
        self,
        graph: MaseGraph,
        batches: Iterable[Any],
        where: str,
        weights: Mapping[nn.Module, nn.Parameter] | None = None,
    ) -> None:
        batches = list(batches)
        self.graph = graph
        self.now = LayerwiseRun(graph, batches, where)
        self.before = LayerwiseRun(graph, batches, where)
        self._context = contextlib.ExitStack()
        self._weights = {**dict(_called_again(graph)), **(weights or {})}

    def __enter__(self) -> PairedRun:
        self._context.enter_context(self.now)
        self._context.enter_context(self.before)
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.close()

    def operands(self, node: fx.Node) -> Iterator[tuple[Tensor, Tensor]]:
        """What `node` is given first, batch by batch, and what it was given without formats."""
        self.now.advance(node)
        self.advance_before(node)
        yield from zip(self.now.operands(node), self.before.operands(node), strict=True)

    def remember(self, layer: nn.Module) -> None:
        """Keep the weight of `layer` for the graph as it was; after that it may change."""
        self._weights.setdefault(layer, stored_weight(layer))

    def leave(self, node: fx.Node) -> None:
        """Run the graph as it was past `node`; after that anything of the node may change."""
        self.advance_before(node.next)

    def advance_before(self, to: fx.Node) -> None:
        """Run the graph as it was up to `to`, which is not run."""
        with self._as_before():
            self.before.advance(to)

    @contextlib.contextmanager
    def _as_before(self) -> Iterator[None]:
        with formats_off(self.graph.model), contextlib.ExitStack() as stack:
            for layer, weight in self._weights.items():
                stack.callback(setattr, layer, "weight", stored_weight(layer))
                layer.weight = weight
            yield


def _called_again(graph: MaseGraph) -> Iterator[tuple[nn.Module, nn.Parameter]]:
    """Layers that several nodes call, with the weight that the later calls had too."""
    targets = Counter(str(n.target) for n in graph.fx_graph.nodes if n.op == "call_module")
    for target, calls in targets.items():
        layer = graph.model.get_submodule(target)
        weight = layer._parameters.get("weight")
        if calls > 1 and weight is not None:
            yield layer, weight


@contextlib.contextmanager
def formats_off(model: nn.Module) -> Iterator[None]:
    """Let every quantised layer compute in floating point for a while."""
    with contextlib.ExitStack() as stack:
        for layer in model.modules():
            if isinstance(layer, QuantizedModule):
                stack.callback(setattr, layer, "quantizers", layer.quantizers)
                layer.quantizers = dict.fromkeys(layer.quantizers, Bypass())
        yield
