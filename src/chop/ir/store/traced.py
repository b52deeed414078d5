"""Module of a MaseGraph: a torch.fx GraphModule that can be copied and pickled."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from chop.errors import GraphError
from chop.ir.guards import Guards, bound, guards_of, replace_guards
from chop.ir.outputs import OutputTemplate, template_of
from chop.ir.store.codec import Decoder, encode_node
from chop.ir.store.node_records import decode_graph

Recapture = Callable[[Mapping[str, Any]], None]


class TracedModule(fx.GraphModule):
    """GraphModule whose copies keep metadata, modes, output classes and the model's config.

    torch.fx shares `node.meta` between a GraphModule and its copy; here a copy is independent, and
    links in its metadata refer to its own nodes. A call with sizes outside its guards raises a
    SizeError.
    """

    input_names: tuple[str, ...] = ()
    """Inputs in the order of the call."""
    recapture: Recapture | None = None
    """Function that replaces the graph before a call with other sizes."""
    generation_config: Any = None
    """Defaults of transformers' `generate`, for a graph with a cache."""

    def recompile(self) -> Any:
        """Recompile the module after a change to its graph."""
        names = (str(n.target).lstrip("*") for n in self.graph.nodes if n.op == "placeholder")
        self.__dict__["input_names"] = tuple(names)
        return super().recompile()

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        # before torch looks up the forward, which a recapture replaces
        if self.recapture is not None and not torch.compiler.is_compiling():
            self.recapture(bound(self, args, kwargs))
        return super()._call_impl(*args, **kwargs)

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """Raise: transformers' Trainer calls this method of its models."""
        raise GraphError(
            f"gradient_checkpointing: the graph of {type(self).__name__} has no blocks to compute "
            "again. Leave gradient_checkpointing off, and lower the memory by a smaller batch with "
            "gradient_accumulation_steps, or by adapters (insert_lora_adapter_transform_pass)."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedModule:
        new: TracedModule = super().__deepcopy__(memo)  # type: ignore[assignment]
        type(new).__name__ = type(self).__name__  # fx creates a class named GraphModule
        pairs = list(zip(self.graph.nodes, new.graph.nodes, strict=True))
        links = {**memo, **{id(old): copied for old, copied in pairs}}
        for old, copied in pairs:
            copied.meta = {k: copy.deepcopy(v, links) for k, v in old.meta.items()}
        config = copy.deepcopy(getattr(self, "config", None), memo)
        guards = copy.deepcopy(guards_of(self))
        _restore(new, template_of(self), config, _modes(self), _transient(self), guards)
        _keep_generation(new, copy.deepcopy(self.generation_config, memo))
        return new

    def __reduce__(self) -> Any:
        # fx would pickle generated source and trace it again, without metadata and names
        nodes = [encode_node(node) for node in self.graph.nodes]
        targets = {str(n.target) for n in self.graph.nodes if n.op in ("call_module", "get_attr")}
        attributes = {target: operator.attrgetter(target)(self) for target in sorted(targets)}
        config = getattr(self, "config", None)
        extras = (template_of(self), config, _modes(self), _transient(self), guards_of(self))
        name = type(self).__name__
        return _rebuild, (nodes, attributes, name, extras, self.generation_config)


def _keep_generation(model: TracedModule, config: Any) -> None:
    if config is not None:  # otherwise a copy has no such attribute
        model.generation_config = config


def _rebuild(
    nodes: Any, attributes: Any, class_name: str, extras: Any, generation_config: Any = None
) -> TracedModule:
    graph = decode_graph(nodes, Decoder(trust=True))
    new = TracedModule(attributes, graph, class_name=class_name)
    _restore(new, *extras)
    _keep_generation(new, generation_config)
    return new


def _restore(
    module: TracedModule,
    template: OutputTemplate | None,
    config: Any,
    modes: dict[str, bool],
    transient: list[str],
    guards: Guards | None = None,
) -> None:
    """Restore the parts of a copy beyond graph and modules."""
    if guards is not None:
        replace_guards(module, guards)
    if template is not None:
        template.attach(module)
    if config is not None:
        module.config = config
    parts = dict(module.named_modules(remove_duplicate=False))
    for name in parts.keys() & modes.keys():  # a module whose nodes were erased is not copied
        parts[name].training = modes[name]
    for name in transient:
        owner, _, leaf = name.rpartition(".")
        if owner in parts:
            parts[owner]._non_persistent_buffers_set.add(leaf)


def _modes(module: fx.GraphModule) -> dict[str, bool]:
    return {name: part.training for name, part in module.named_modules()}


def _transient(module: fx.GraphModule) -> list[str]:
    """Return the buffers that are not part of the state dict."""
    return [
        f"{name}.{buffer}" if name else buffer
        for name, part in module.named_modules()
        for buffer in sorted(part._non_persistent_buffers_set)
    ]
