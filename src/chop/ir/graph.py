"""MaseGraph: a model captured as a torch.fx graph whose nodes carry MASE metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import fx, nn

from chop.ir.inputs import example_inputs
from chop.ir.tracer import TraceOptions, trace


class MaseGraph:
    """A model as a graph: `model` runs it, `fx_graph` is it, `node.meta["mase"]` annotates it."""

    def __init__(
        self,
        model: nn.Module,
        hf_input_names: Iterable[str] | None = None,
        dummy_in: Mapping[str, Any] | None = None,
        custom_ops: Mapping[str, Any] | None = None,
        *,
        leaf_modules: Iterable[str | type[nn.Module]] = (),
        specialize: bool = False,
    ) -> None:
        self.custom_ops: dict[str, Any] = dict(custom_ops or {})
        options = TraceOptions(
            leaf_modules=(*leaf_modules, *self.custom_ops.get("modules", {})),
            specialize=specialize,
        )
        self.dummy_in = example_inputs(model, hf_input_names, dummy_in)
        self.model = trace(model, self.dummy_in, options)

    @property
    def fx_graph(self) -> fx.Graph:
        """The torch.fx graph; assigning one recompiles the model."""
        return self.model.graph

    @fx_graph.setter
    def fx_graph(self, graph: fx.Graph) -> None:
        self.model.graph = graph

    @property
    def nodes(self) -> Any:
        """The nodes of the graph, in order of execution."""
        return self.fx_graph.nodes

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The live modules of the model, by qualified name."""
        return dict(self.model.named_modules())

    def recompile(self) -> None:
        """Check the graph and make `model` run it, after a change to its nodes."""
        self.fx_graph.lint()
        self.model.recompile()
