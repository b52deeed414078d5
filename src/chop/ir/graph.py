"""MaseGraph: a model captured as a torch.fx graph whose nodes carry MASE metadata."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import fx, nn

from chop.ir.meta import MaseMetadata


class MaseGraph:
    """A model as a graph: `model` runs it, `fx_graph` is it, `node.meta["mase"]` annotates it."""

    def __init__(
        self,
        model: nn.Module,
        hf_input_names: Iterable[str] | None = None,
        dummy_in: Mapping[str, Any] | None = None,
        custom_ops: Mapping[str, Any] | None = None,
    ) -> None:
        self.custom_ops: dict[str, Any] = dict(custom_ops or {})
        self.dummy_in = dict(dummy_in) if dummy_in else None
        self.model = fx.symbolic_trace(model)

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
