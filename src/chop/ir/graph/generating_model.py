"""Captured language model as a class of transformers, for transformers' `generate`.

The new class inherits from the original model's class, with all its methods for generation; its
forward runs the graph. An encoder-decoder runs as two graphs that share the modules of one.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir import kv_cache
from chop.ir.decode_steps import decode_step
from chop.ir.guards import guards_of
from chop.ir.outputs import template_of
from chop.ir.store.traced import TracedModule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PAST = "past_key_values"
ENCODED = "encoder_states"
LABELS, LOSS = "labels", "loss"
_IGNORED = ("use_cache", "return_dict", "cache_position", "logits_to_keep", "token_type_ids")
"""Arguments of forward that do not change the result and may be dropped."""


class Generator:
    """Graph as a model of transformers, with the parts it was created from."""

    def __init__(self, model: TracedModule, model_class: type[nn.Module] | None = None) -> None:
        if getattr(model, "config", None) is None:
            raise GraphError(
                f"generate: {type(model).__name__} was not captured from a model of transformers: "
                "it has no config, by which transformers generates."
            )
        cls = _graph_class(_class_of(model, model_class))
        self.model: PreTrainedModel = cls(_without_loss(model))
        self._code, self._parts = model.code, _parts_of(model)

    def is_of(self, model: TracedModule) -> bool:
        """Return True if `model` still has the same code, modules and tensors."""
        parts = _parts_of(model)
        same_parts = len(parts) == len(self._parts) and all(map(operator.is_, parts, self._parts))
        return same_parts and model.code == self._code and model.training == self.model.training


def _without_loss(model: TracedModule) -> TracedModule:
    """Return `model` without its input `labels` and the loss; both share modules."""
    if LABELS not in model.input_names:
        return model
    graph = fx.Graph()
    inputs = model.graph.find_nodes(op="placeholder")
    copies = {node: graph.node_copy(node) for node in inputs if node.target != LABELS}
    result: Any = next(iter(reversed(model.graph.nodes))).args[0]
    results = {key: value for key, value in result.items() if key != LOSS}
    fx.node.map_arg(results, lambda node: copies.get(node) or _copy(graph, node, copies))
    graph.output(fx.node.map_arg(results, copies.__getitem__))
    part, template = _part(model, graph), template_of(model)
    part.config, part.generation_config = model.config, model.generation_config
    if template is not None:
        template.attach(part)
    return part


def _parts_of(model: TracedModule) -> list[Any]:
    return [*model.modules(), *model.parameters(), *model.buffers()]


def has_cache(model: TracedModule) -> bool:
    """Return True if the graph has a key-value cache as input."""
    return PAST in model.input_names


def _class_of(model: TracedModule, original: type[nn.Module] | None) -> Any:
    import transformers
    from transformers import GenerationMixin

    name = type(model).__name__
    cls = original or getattr(transformers, name, None)
    if cls is None or not issubclass(cls, GenerationMixin):
        raise GraphError(
            f"generate: '{name}' is not a class of transformers that generates. Allowed: a causal "
            "language model or an encoder-decoder, such as LlamaForCausalLM."
        )
    return cls


@functools.cache
def _graph_class(cls: Any) -> Any:
    """Return a subclass of `cls` whose forward runs a graph."""

    @functools.wraps(cls.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = dict(zip(self._argument_names, args, strict=False))
        return self._run_graph({**named, **kwargs})

    body = {**vars(_GraphModel), "forward": forward}
    members = {k: v for k, v in body.items() if k not in ("__dict__", "__weakref__")}
    return type(f"{cls.__name__}Graph", (cls,), {**members, "__module__": __name__})


class _GraphModel:
    """Members that `_graph_class` adds to a class of transformers."""

    def __init__(self: Any, model: Any) -> None:
        from transformers import GenerationConfig

        nn.Module.__init__(self)
        self.config = copy.deepcopy(model.config)
        masks = model.graph.find_nodes(op="call_function", target=kv_cache.causal_mask)
        is_additive = any(node.args[4] for node in masks)
        self.config._attn_implementation = "eager" if is_additive else "sdpa"
        defaults = model.generation_config or GenerationConfig.from_model_config(model.config)
        self.generation_config = copy.deepcopy(defaults)
        self._argument_names = tuple(inspect.signature(self.forward).parameters)
        self.captured = model
        inputs = model.graph.find_nodes(op="placeholder")
        self._needs_mask = any(n.target == "attention_mask" and not n.args for n in inputs)
        self._parts: Any = None
        self.uses_native_step = True
        self._step: Any = None
        self.training = model.training

    def __getattr__(self: Any, name: str) -> Any:
        # modules of the model, which classes of transformers read by path
        try:
            return nn.Module.__getattr__(self, name)
        except AttributeError:
            if name == "encoder" and self.config.is_encoder_decoder:
                return self.parts[0]
            return getattr(nn.Module.__getattr__(self, "captured"), name)

    @property
    def device(self: Any) -> torch.device:
        """Device of the first tensor: a packed model may have no parameters."""
        # only as far as the first: transformers asks for it several times a token
        tensors = itertools.chain(self.captured.parameters(), self.captured.buffers())
        return next(tensors, torch.empty(0)).device

    @property
    def dtype(self: Any) -> torch.dtype:
        """Dtype of the first floating-point parameter."""
        dtypes = (p.dtype for p in self.captured.parameters() if p.is_floating_point())
        return next(dtypes, torch.get_default_dtype())

    def get_encoder(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the encoder's part of the graph."""
        return self.parts[0] if self.config.is_encoder_decoder else self

    @property
    def parts(self: Any) -> Any:
        """Modules of encoder and decoder."""
        if self._parts is None:
            encoder, decoder = split(self.captured)
            self._parts = (_Encoder(encoder, self.main_input_name), decoder)
        return self._parts

    def _run_graph(self: Any, arguments: dict[str, Any]) -> Any:
        arguments = {name: value for name, value in arguments.items() if value is not None}
        encoded = arguments.pop("encoder_outputs", None)
        module = self.captured
        if arguments.get("use_cache") and PAST not in arguments and PAST in module.input_names:
            from transformers import DynamicCache

            arguments[PAST] = DynamicCache(config=self.config)  # as the models themselves do
        if encoded is not None:
            module = self.parts[1]
            arguments[ENCODED] = encoded[0]
            arguments = {k: v for k, v in arguments.items() if k != self.main_input_name}
        elif self._needs_mask and "attention_mask" not in arguments:
            ids = arguments["input_ids"]  # transformers omits a mask of ones
            length = kv_cache.past_length(arguments.get(PAST)) + ids.shape[1]
            arguments["attention_mask"] = ids.new_ones(len(ids), length)
        names = module.input_names
        _check_arguments(arguments, names, type(self.captured).__name__)
        inputs = {name: value for name, value in arguments.items() if name in names}
        result = self._run_native(module, inputs)
        return module(**inputs) if result is None else result

    def _run_native(self: Any, module: TracedModule, inputs: dict[str, Any]) -> Any:
        """Return the result of a native decode step; None if it does not cover this call."""
        is_plain = module._compiled_call_impl is None and module.recapture is None
        if not self.uses_native_step or PAST not in inputs or not is_plain:
            return None
        if self._step is None:
            self._step = decode_step(module)
        return self._step.run(inputs)


class _Encoder(nn.Module):
    """Encoder's part of a graph, with the output class of transformers' encoders."""

    def __init__(self, part: TracedModule, main_input_name: str) -> None:
        super().__init__()
        self.part = part
        self.main_input_name = main_input_name

    def forward(self, **kwargs: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        inputs = {k: v for k, v in kwargs.items() if k in self.part.input_names}
        return BaseModelOutput(last_hidden_state=self.part(**inputs))


def _check_arguments(arguments: dict[str, Any], names: tuple[str, ...], model: str) -> None:
    """Raise for arguments that the graph does not have and that would change the result."""
    for key, value in arguments.items():
        if key in names or key in _IGNORED or value is False or _is_default(key, value):
            continue
        raise GraphError(
            f"the graph of {model} does not take '{key}'. It takes: {', '.join(names)}. "
            "MaseGraph(model, cache=True) takes what generation needs; prompts of unequal lengths "
            "need position_ids."
        )


def _is_default(key: str, value: Any) -> bool:
    """Return True for a default of the model: a mask of ones, or positions counted from 0."""
    if not isinstance(value, Tensor) or value.dim() != 2:
        return False
    if key.endswith("attention_mask"):
        return bool((value == 1).all())
    counted = torch.arange(value.shape[1], device=value.device)
    return key.endswith("position_ids") and bool((value == counted).all())


def split(model: TracedModule) -> tuple[TracedModule, TracedModule]:
    """Split a graph into encoder and decoder, which share the modules of `model`."""
    sources = model.graph.find_nodes(op="call_function", target=kv_cache.cross_source)
    if not sources:
        raise GraphError(
            f"the graph of {type(model).__name__} was captured without its cache. Capture it with "
            "MaseGraph(model, cache=True)."
        )
    states: Any = sources[0].args[0]
    encoder = fx.Graph()
    encoder.output(_copy(encoder, states, {}))
    decoder = fx.Graph()
    output = next(iter(reversed(model.graph.nodes)))
    _copy(decoder, output, {states: decoder.placeholder(ENCODED)})
    part, template = _part(model, decoder), template_of(model)
    if template is not None:
        template.attach(part)
    return _part(model, encoder), part


def _copy(graph: fx.Graph, result: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """Copy `result` and the nodes it needs to `graph`, except those in `copies`."""
    needed: set[fx.Node] = set()
    waiting = [result]
    while waiting:
        node = waiting.pop()
        if node not in needed and node not in copies:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    for node in result.graph.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return copies[result]


def _part(model: TracedModule, graph: fx.Graph) -> TracedModule:
    part = TracedModule(model, graph, class_name=type(model).__name__)
    part.training = model.training
    guards = guards_of(model)
    if guards is not None:
        guards.restricted(part.input_names).attach(part)
    return part
