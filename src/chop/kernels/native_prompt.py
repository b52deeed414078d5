"""Prompts of native decode steps: blocks of tokens that fill an empty cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from chop.kernels.row_codecs import FloatCodec
from chop.kernels.step_builder import MASKS, PAST, POSITIONS, BuiltStep
from chop.kernels.step_code import KINDS, UnsupportedError, library

TOKENS = "input_ids"
MOST_PROMPT = 64
"""Longest prompt of native steps; PyTorch, which decodes the weights once, reads longer ones."""
MOST_ROUNDED_PROMPT = 2048
"""The same where activations are rounded, so that products are in integers."""


def is_prompt(arguments: Mapping[str, Any]) -> bool:
    """Return True for the first tokens of one sequence, without padding."""
    tokens, past = arguments[TOKENS], arguments[PAST]
    if len(tokens) > 1 or past.get_seq_length():
        return False
    masks = [arguments[name] for name in MASKS if arguments.get(name) is not None]
    return all(mask.shape == tokens.shape and bool(mask.all()) for mask in masks)


def blocks_of(arguments: Mapping[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Yield the arguments of steps of up to `size` tokens, one after the other."""
    for first in range(0, arguments[TOKENS].shape[1], size):
        part = dict(arguments)
        for name in (TOKENS, POSITIONS):
            if part.get(name) is not None:
                part[name] = part[name][:, first : first + size]
        for name in MASKS:
            if part.get(name) is not None:
                part[name] = part[name][:, : first + size]
        yield part


def longest_prompt(step: BuiltStep) -> int:
    """Return the length of the longest prompt that native steps read faster than PyTorch.

    They do with mostly packed weights, if the rows of a step share what is decoded of a weight: on
    AVX-512, and for activations rounded to 8 bits on AVX-512 VNNI. PyTorch decodes whole weights.
    """
    built, sizes, is_rounded = library(), dict.fromkeys(KINDS, 0), True
    if built is None:
        return 0
    for instruction in step.program.instructions:
        kind = KINDS[instruction.kind]
        sizes[kind] += instruction.size[0] * instruction.size[1]
        if kind == "packed_product":
            is_rounded &= bool(instruction.function)
            if not built.mase_step_shares_rows(instruction.function):
                return 0
    if sizes["packed_product"] <= sizes["float_product"] + sizes["transposed_product"]:
        return 0
    return MOST_ROUNDED_PROMPT if is_rounded else MOST_PROMPT


def length_without_results(step: BuiltStep) -> int:
    """Return the number of instructions up to the last that stores keys and values."""
    kinds = [KINDS[instruction.kind] for instruction in step.program.instructions]
    return len(kinds) - kinds[::-1].index("append")


class EmptyCache:
    """Layers of an empty cache during a prompt; `restore` makes them empty again."""

    def __init__(self, layers: Sequence[Any], appended: Sequence[tuple[Tensor, Tensor]]) -> None:
        if len(layers) != len(appended):
            raise UnsupportedError("a cache with other layers")
        self._layers, self._appended = layers, appended
        self._before = [{k: _copied(v) for k, v in vars(layer).items()} for layer in layers]

    def begin(self) -> None:
        """Make the layers ready for native steps; raise UnsupportedError if one cannot be."""
        for layer, (key, value) in zip(self._layers, self._appended, strict=True):
            _begin(layer, key[:1], value[:1])

    def restore(self) -> None:
        """Set all layers to their state before the prompt."""
        for layer, before in zip(self._layers, self._before, strict=True):
            vars(layer).clear()
            vars(layer).update(before)


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


def _begin(layer: Any, key: Tensor, value: Tensor) -> None:
    """Give an empty layer keys and values of no tokens, with the sizes of `key` and `value`."""
    is_float = isinstance(getattr(layer, "codec", None), FloatCodec)
    if is_float and hasattr(layer, "begin"):
        layer.begin(key, value)
    elif type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
        layer.lazy_initialization(key, value)
        layer.keys, layer.values = key[:, :, :0], value[:, :, :0]
    else:
        raise UnsupportedError(f"an empty cache layer of class {type(layer).__name__}")
