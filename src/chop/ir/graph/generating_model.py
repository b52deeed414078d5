"""A captured language model as transformers' own class, so that transformers' `generate` runs it.

The class of the model it came from is kept, with all that it says about generation; what it
computes is the graph. An encoder-decoder runs as two graphs that share the modules of the one.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir import kv_cache
from chop.ir.guards import guards_of
from chop.ir.node_arguments import tensors_in
from chop.ir.outputs import template_of
from chop.ir.store.traced import TracedModule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PAST = "past_key_values"
ENCODED = "encoder_states"
_IGNORED = ("use_cache", "return_dict", "cache_position", "logits_to_keep", "token_type_ids")
"""Arguments of forward that change nothing where a graph does not take them."""


class Generator:
    """A graph as a model of transformers, and what it was made of."""

    def __init__(self, model: TracedModule, model_class: type[nn.Module] | None = None) -> None:
        if getattr(model, "config", None) is None:
            raise GraphError(
                f"generate: {type(model).__name__} was not captured from a model of transformers: "
                "it has no config, by which transformers generates."
            )
        self.model: PreTrainedModel = _graph_class(_class_of(model, model_class))(model)
        self._code, self._made_of = model.code, _parts_of(model)

    def is_of(self, model: TracedModule) -> bool:
        """Whether `model` is still what this was made of: code, modules and tensors."""
        now = _parts_of(model)
        same_parts = len(now) == len(self._made_of) and all(map(operator.is_, now, self._made_of))
        return same_parts and model.code == self._code and model.training == self.model.training


def _parts_of(model: TracedModule) -> list[Any]:
    return [*model.modules(), *model.parameters(), *model.buffers()]


def has_cache(model: TracedModule) -> bool:
    """Whether the graph takes keys and values of the tokens before."""
    return PAST in model.input_names


def _class_of(model: TracedModule, known: type[nn.Module] | None) -> Any:
    import transformers
    from transformers import GenerationMixin

    name = type(model).__name__
    cls = known or getattr(transformers, name, None)
    if cls is None or not issubclass(cls, GenerationMixin):
        raise GraphError(
            f"generate: '{name}' is not a class of transformers that generates. Allowed: a causal "
            "language model or an encoder-decoder, such as LlamaForCausalLM."
        )
    return cls


@functools.cache
def _graph_class(cls: Any) -> Any:
    """`cls` with forward replaced by a graph."""

    @functools.wraps(cls.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = dict(zip(self._argument_names, args, strict=False))
        return self._run_graph({**named, **kwargs})

    body = {**vars(_GraphModel), "forward": forward}
    kept = {k: v for k, v in body.items() if k not in ("__dict__", "__weakref__", "__module__")}
    return type(f"{cls.__name__}Graph", (cls,), {**kept, "__module__": __name__})


class _GraphModel:
    """What a class of transformers gets to run a graph; `_graph_class` puts it in."""

    def __init__(self: Any, model: TracedModule) -> None:
        nn.Module.__init__(self)
        self.config = copy.deepcopy(model.config)
        self.config._attn_implementation = _implementation(model)
        self.generation_config = copy.deepcopy(_generation_config(model))
        self._argument_names = tuple(inspect.signature(self.forward).parameters)
        self.captured = model
        inputs = model.graph.find_nodes(op="placeholder")
        self._needs_mask = any(n.target == "attention_mask" and not n.args for n in inputs)
        self._parts: Any = None
        self.training = model.training

    def __getattr__(self: Any, name: str) -> Any:
        # Modules of the model, which classes of transformers read by their paths.
        try:
            return nn.Module.__getattr__(self, name)
        except AttributeError:
            if name == "encoder" and self.config.is_encoder_decoder:
                return self.parts[0]
            return getattr(nn.Module.__getattr__(self, "captured"), name)

    @property
    def device(self: Any) -> torch.device:
        """Of the first tensor: a packed model may have no parameters."""
        return _first_tensor(self.captured).device

    @property
    def dtype(self: Any) -> torch.dtype:
        """The number format it computes in."""
        floats = (p for p in self.captured.parameters() if p.is_floating_point())
        found = next(floats, None)
        return torch.get_default_dtype() if found is None else found.dtype

    def get_encoder(self: Any, *args: Any, **kwargs: Any) -> Any:
        """The encoder's part of the graph."""
        return self.parts[0] if self.config.is_encoder_decoder else self

    @property
    def parts(self: Any) -> Any:
        """Encoder and decoder, each a module."""
        if self._parts is None:
            encoder, decoder = split(self.captured)
            self._parts = (_Encoder(encoder, self.main_input_name), decoder)
        return self._parts

    def _run_graph(self: Any, given: dict[str, Any]) -> Any:
        given = {name: value for name, value in given.items() if value is not None}
        encoded = given.pop("encoder_outputs", None)
        module = self.captured
        if encoded is not None:
            module = self.parts[1]
            given[ENCODED] = encoded[0]
            given = {k: v for k, v in given.items() if k != self.main_input_name}
        elif self._needs_mask and "attention_mask" not in given:
            given["attention_mask"] = _ones(given)  # transformers leaves it out where it says none
        takes = module.input_names
        _check_given(given, takes, type(self.captured).__name__)
        return module(**{name: value for name, value in given.items() if name in takes})


class _Encoder(nn.Module):
    """The encoder's part of a graph, that gives its output as transformers' encoders do."""

    def __init__(self, part: TracedModule, main_input_name: str) -> None:
        super().__init__()
        self.part = part
        self.main_input_name = main_input_name

    def forward(self, **kwargs: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        given = {k: v for k, v in kwargs.items() if k in self.part.input_names}
        return BaseModelOutput(last_hidden_state=self.part(**given))


def _ones(given: dict[str, Any]) -> Tensor:
    ids: Tensor = given["input_ids"]
    return ids.new_ones(len(ids), kv_cache.past_length(given.get(PAST)) + ids.shape[1])


def _check_given(given: dict[str, Any], takes: tuple[str, ...], name: str) -> None:
    """Refuse what would change the result if the graph took it."""
    for key, value in given.items():
        if key in takes or key in _IGNORED or value is False or _is_default(key, value):
            continue
        raise GraphError(
            f"the graph of {name} does not take '{key}'. It takes: {', '.join(takes)}. "
            "MaseGraph(model, cache=True) takes what generation needs; prompts of unequal lengths "
            "need position_ids."
        )


def _is_default(key: str, value: Any) -> bool:
    """Whether the model takes this value by itself: a mask of ones, positions counted from 0."""
    if not isinstance(value, Tensor) or value.dim() != 2:
        return False
    if key.endswith("attention_mask"):
        return bool((value == 1).all())
    counted = torch.arange(value.shape[1], device=value.device)
    return key.endswith("position_ids") and bool((value == counted).all())


def _implementation(model: TracedModule) -> str:
    """How its attention takes masks."""
    nodes = model.graph.find_nodes(op="call_function", target=kv_cache.causal_mask)
    return "eager" if any(node.args[4] for node in nodes) else "sdpa"


def _generation_config(model: TracedModule) -> Any:
    from transformers import GenerationConfig

    config: Any = model.config
    return model.generation_config or GenerationConfig.from_model_config(config)


def _first_tensor(model: nn.Module) -> Tensor:
    found = next(tensors_in((*model.parameters(), *model.buffers())), None)
    return torch.empty(0) if found is None else found


# -- encoder and decoder -------------------------------------------------------------------------


def split(model: TracedModule) -> tuple[TracedModule, TracedModule]:
    """Encoder and decoder of a graph; both hold the modules of `model` itself."""
    found = model.graph.find_nodes(op="call_function", target=kv_cache.cross_source)
    if not found:
        raise GraphError(
            f"the graph of {type(model).__name__} was captured without its cache. Capture it with "
            "MaseGraph(model, cache=True)."
        )
    states = found[0].args[0]
    return _encoder(model, states), _decoder(model, states)


def _encoder(model: TracedModule, states: fx.Node) -> TracedModule:
    graph = fx.Graph()
    copies = _copied(graph, _needed([states], until=()), {})
    graph.output(copies[states])
    return _part(model, graph)


def _decoder(model: TracedModule, states: fx.Node) -> TracedModule:
    graph = fx.Graph()
    copies = {states: graph.placeholder(ENCODED)}
    output = next(iter(reversed(model.graph.nodes)))
    _copied(graph, [*_needed([output], until=(states,)), output], copies)
    part = _part(model, graph)
    template = template_of(model)
    if template is not None:
        template.attach(part)
    return part


def _needed(results: list[fx.Node], until: tuple[fx.Node, ...]) -> list[fx.Node]:
    """What `results` are computed from, in order, without `until` and what comes before them."""
    found: set[fx.Node] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node not in found and node not in until:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return [n for n in results[0].graph.nodes if n in found and n.op != "output"]


def _copied(
    graph: fx.Graph, nodes: list[fx.Node], copies: dict[fx.Node, fx.Node]
) -> dict[fx.Node, fx.Node]:
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return copies


def _part(model: TracedModule, graph: fx.Graph) -> TracedModule:
    part = TracedModule(model, graph, class_name=type(model).__name__)
    part.training = model.training
    guards = guards_of(model)
    if guards is not None:
        guards.restricted(part.input_names).attach(part)
    return part
