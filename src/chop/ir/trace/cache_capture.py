"""Capture of a language model with its key-value cache: uses of the cache become nodes.

The model runs with an empty cache that records its calls (`chop.ir.kv_cache`). Masks are single
nodes too, because they depend on the cache that the graph is called with later.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import unittest.mock
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import fx, nn

from chop.errors import SizeError, TraceError
from chop.ir import kv_cache
from chop.ir.guards import Guards, guards_of
from chop.ir.trace.environment import patched, source_modules
from chop.ir.trace.inputs import Signature, default_names
from chop.ir.trace.recorder import Opaque, Recorder
from chop.ir.trace.tracked import Expression, track

PAST = "past_key_values"
MASKS = ("attention_mask", "decoder_attention_mask")
POSITIONS = ("position_ids", "decoder_position_ids")
KEPT_LOGITS = "logits_to_keep"
FOLLOW_MASK = ("opt", "xglm")
"""Model types whose default positions count the tokens that the mask admits."""
_IMPLEMENTATIONS = {"sdpa": False, "eager": True}
"""Implementation of attention -> True if its masks are added to the scores."""
_WHOLE = {
    kv_cache.causal_mask,
    kv_cache.bidirectional_mask,
    kv_cache.recurrent_mask,
    kv_cache.positions,
}
_RESHAPING = ("view", "reshape", "to", "long", "bool")
_UNSUPPORTED_MASKS = ("or_mask_function", "and_mask_function", "block_sequence_ids")


def check_has_cache(model: nn.Module) -> None:
    """Raise if a model accepts no cache, or if its attention has other masks."""
    kind = type(model).__name__
    config = getattr(model, "config", None)
    if config is None or PAST not in Signature.of(model).names:
        raise TraceError(
            f"cache: {kind}.forward has no input '{PAST}'. Capture it without a cache; with one, "
            "a causal language model or an encoder-decoder of transformers."
        )
    import transformers
    from transformers.cache_utils import Cache

    if "query_length" not in inspect.signature(Cache.get_mask_sizes).parameters:
        raise TraceError(
            f"cache: the caches of transformers {transformers.__version__} do not count tokens "
            "themselves. Install a newer release: pip install -U transformers."
        )
    used = getattr(config, "_attn_implementation", None)
    if used not in _IMPLEMENTATIONS:
        raise TraceError(
            f"cache: {kind} computes attention by '{used}'. Allowed: "
            f"{', '.join(_IMPLEMENTATIONS)}; model.set_attn_implementation('sdpa') sets it."
        )


def takes_cache(model: nn.Module) -> bool:
    """Return True if a model can be captured with its cache."""
    try:
        check_has_cache(model)
    except TraceError:
        return False
    return True


def check_generates(model: nn.Module, module: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Raise if the captured `module` rejects single tokens, which generation calls it with."""
    name = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    tokens, guards = inputs.get(name), guards_of(module)
    if guards is None or not isinstance(tokens, torch.Tensor):
        return
    try:
        guards.check({name: tokens[:, :1]}, type(model).__name__)
    except SizeError as error:
        raise TraceError(
            f"cache: {type(model).__name__} cannot be captured with its cache: generation calls it "
            f"with one token at a time, and its graph is for one length alone. {error} Capture it "
            "without a cache."
        ) from error


def names_with_cache(
    model: nn.Module, names: Iterable[str] | None, dummy_in: Any
) -> Iterable[str] | None:
    """Return the inputs to capture with; the default inputs include the padding mask."""
    if names is not None or dummy_in is not None:
        return names
    masked = [MASKS[0]] if MASKS[0] in Signature.of(model).names else []
    return [*default_names(model), *masked]


@dataclass
class PastRecording:
    """Run of `model` with a cache, recorded by `recorder`."""

    model: nn.Module
    recorder: Recorder

    def inputs(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's arguments: `own` and the inputs that a cache adds.

        These have defaults in the graph: the mask of the decoder, positions, the number of logits
        to keep, and the cache.
        """
        names = Signature.of(self.model).names
        tokens = own.get("decoder_input_ids", own.get("input_ids"))
        if tokens is None:
            raise TraceError("cache: a model is captured with its cache on input_ids; none given.")
        more: dict[str, Any] = {}
        if self._is_pair() and MASKS[1] in names and MASKS[1] not in own:
            with self.recorder.not_recording():
                more[MASKS[1]] = torch.ones_like(tokens)
            self.recorder.placeholder(MASKS[1], more[MASKS[1]], None)
        position = POSITIONS[1 if self._is_pair() else 0]
        ids = Opaque() if position in names and position not in own else None
        if ids is not None:
            self.recorder.placeholder(position, ids, None)
        if KEPT_LOGITS in names and KEPT_LOGITS not in own:
            node = self.recorder.placeholder(KEPT_LOGITS, None, 0)
            count = Expression(self.recorder, operator.pos, 0)
            count._node = node
            more[KEPT_LOGITS] = track(0, count)
        self.past = self._cache()
        if ids is not None:
            mask = more.get(MASKS[1], own.get(MASKS[0]) if not self._is_pair() else None)
            follows = getattr(self.model.config, "model_type", "") in FOLLOW_MASK
            arguments = ids, tokens, self.past, mask if follows else None
            more[position] = self._ask(kv_cache.positions, *arguments)
        return {**own, **more, PAST: self.past, "use_cache": True}

    def _is_pair(self) -> bool:
        return bool(getattr(self.model.config, "is_encoder_decoder", False))

    def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        """Record one use of the cache, computed as without a cache."""

        def run(*args: Any) -> Any:
            return function(*(None if isinstance(a, Opaque) else a for a in args))

        return self.recorder.call_whole(function, run, args, {})

    def _refuse(self, state: str) -> NoReturn:
        raise TraceError(
            f"cache: {type(self.model).__name__} keeps {state}, which a graph with a cache cannot "
            "hold. Capture it without a cache."
        )

    def _cache(self) -> Any:
        from transformers.cache_utils import Cache, EncoderDecoderCache

        recording = self

        class RecordedCache(Opaque, Cache):
            is_cross = False

            def __init__(self) -> None:
                self.layers = []

            def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any) -> Any:
                function = kv_cache.update_cross if self.is_cross else kv_cache.update_past
                return recording._ask(function, self, key_states, value_states, layer_idx)

            def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
                return None  # the model then computes prompts and single tokens in one way

            def update_conv_state(
                self, conv_states: Any, layer_idx: int, state_idx: int = 0, **more: Any
            ) -> Any:
                size = more.pop("conv_kernel_size", None)
                if state_idx or more or size is None:
                    recording._refuse("several states of one layer")
                arguments = self, conv_states, layer_idx, size
                return recording._ask(kv_cache.update_convolution, *arguments)

            def has_previous_state(self, *_: Any, **__: Any) -> bool:
                recording._refuse("a recurrent state")

            def get_recurrent_state(self, *_: Any, **__: Any) -> Any:
                recording._refuse("a recurrent state")

            def update_recurrent_state(self, *_: Any, **__: Any) -> Any:
                recording._refuse("a recurrent state")

            def get_seq_length(self, layer_idx: int = 0) -> Any:
                length = Expression(recording.recorder, kv_cache.past_length, self)
                _ = length.node  # written now: an update of the cache changes it
                return track(0, length, depends_on_data=True)

        class RecordedPair(Opaque, EncoderDecoderCache):
            def __init__(self) -> None:
                own, cross = RecordedCache(), RecordedCache()
                cross.is_cross = True
                vars(self).update(self_attention_cache=own, cross_attention_cache=cross)
                self.is_updated = {}

            def get_seq_length(self, layer_idx: int = 0) -> Any:
                return self.self_attention_cache.get_seq_length(layer_idx)

        past: Any = RecordedPair() if self._is_pair() else RecordedCache()
        node = self.recorder.placeholder(PAST, past, None)
        for part in ("self_attention_cache", "cross_attention_cache"):
            if self._is_pair():
                self.recorder.learn(getattr(past, part), node)
        return past

    @contextlib.contextmanager
    def world(self) -> Iterator[None]:
        """Record masks, attention and reads of the encoder as single nodes inside the context."""
        makers = {
            "create_causal_mask": self._causal(is_sliding=False),
            "create_sliding_window_causal_mask": self._causal(is_sliding=True),
            "create_bidirectional_mask": self._bidirectional,
            "create_recurrent_attention_mask": self._recurrent,
        }
        with contextlib.ExitStack() as stack:
            for source in source_modules(self.model):
                if not source.__name__.startswith("transformers.models."):
                    continue
                for name, maker in makers.items():
                    stack.enter_context(patched(source, name, maker))
            stack.enter_context(self._attention())
            if self._is_pair():
                stack.enter_context(self._encoder_read_once())
            yield

    def _causal(self, *, is_sliding: bool) -> Callable[..., Any]:
        def make(config: Any, inputs_embeds: Any, attention_mask: Any, *_: Any, **more: Any) -> Any:
            self._check_mask_options(more)
            if not getattr(config, "is_causal", True):
                return self._bidirectional(config, inputs_embeds, attention_mask)
            window = config.sliding_window if is_sliding else None
            is_additive = _IMPLEMENTATIONS.get(config._attn_implementation, True)
            arguments = attention_mask, inputs_embeds, self.past, window, is_additive
            return self._ask(kv_cache.causal_mask, *arguments)

        return make

    def _bidirectional(
        self, config: Any, inputs_embeds: Any, attention_mask: Any, *_: Any, **more: Any
    ) -> Any:
        self._check_mask_options(more)
        is_additive = _IMPLEMENTATIONS.get(config._attn_implementation, True)
        arguments = attention_mask, inputs_embeds, is_additive
        return self._ask(kv_cache.bidirectional_mask, *arguments)

    def _recurrent(
        self, config: Any, inputs_embeds: Any, attention_mask: Any, *_: Any, **__: Any
    ) -> Any:
        return self._ask(kv_cache.recurrent_mask, attention_mask, inputs_embeds)

    def _check_mask_options(self, options: Mapping[str, Any]) -> None:
        unsupported = [name for name in _UNSUPPORTED_MASKS if options.get(name) is not None]
        if unsupported:
            raise TraceError(
                f"cache: {type(self.model).__name__} makes its mask with {unsupported[0]}, which a "
                "graph with a cache cannot hold. Capture it without a cache."
            )

    @contextlib.contextmanager
    def _attention(self) -> Iterator[None]:
        """Ignore decisions by the number of queries in SDPA attention with a mask."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        plain = ALL_ATTENTION_FUNCTIONS["sdpa"]

        @functools.wraps(plain)
        def attention(
            module: Any, q: Any, k: Any, v: Any, mask: Any, *args: Any, **more: Any
        ) -> Any:
            with contextlib.nullcontext() if mask is None else self.recorder.undecided():
                return plain(module, q, k, v, mask, *args, **more)

        with unittest.mock.patch.dict(ALL_ATTENTION_FUNCTIONS._global_mapping, sdpa=attention):
            yield

    @contextlib.contextmanager
    def _encoder_read_once(self) -> Iterator[None]:
        model: Any = self.model
        decoder = model.get_decoder()
        plain = decoder.forward

        @functools.wraps(plain)
        def forward(*args: Any, **kwargs: Any) -> Any:
            states = kwargs.get("encoder_hidden_states")
            if states is None:
                raise TraceError(
                    f"cache: {type(decoder).__name__} is not given encoder_hidden_states by name."
                )
            kwargs["encoder_hidden_states"] = self._ask(kv_cache.cross_source, states, self.past)
            return plain(*args, **kwargs)

        decoder.forward = forward
        try:
            yield
        finally:
            del decoder.forward


def make_masks_optional(graph: fx.Graph, guards: Guards) -> Guards:
    """Give masks that only whole nodes read the default None, and remove their guards.

    Those nodes accept a mask of any form; the model's reshaping of masks is removed.
    """
    for node in graph.find_nodes(op="call_function", target=kv_cache.causal_mask):
        _read_as_given(node)
    free = []
    for node in graph.find_nodes(op="placeholder"):
        if node.target in MASKS and {user.target for user in node.users} <= _WHOLE:
            node.args = (None,)
            free.append(node.target)
    _move_defaults_last(graph)
    others = [g for g in guards.guards if not any(path[0] in free for path in g.paths())]
    return Guards(tuple(others), guards.captured)


def _move_defaults_last(graph: fx.Graph) -> None:
    """Move inputs with a default behind those without, as Python's signatures need them."""
    inputs = list(graph.find_nodes(op="placeholder"))
    last = inputs[-1]
    for node in [each for each in inputs if each.args]:
        last.append(node)
        last = node


def _read_as_given(node: fx.Node) -> None:
    """Make `node` read the mask before the model reshapes it."""
    mask: Any = node.args[0]
    while isinstance(mask, fx.Node) and mask.op == "call_method" and mask.target in _RESHAPING:
        mask = mask.args[0]
    if not isinstance(mask, fx.Node) or mask.op != "placeholder":
        return
    unused: Any = node.args[0]
    node.update_arg(0, mask)
    while unused is not mask and not unused.users:
        following, unused = unused, unused.args[0]
        node.graph.erase_node(following)
