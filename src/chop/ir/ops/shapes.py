"""Ops that change shape or type, move elements, read sizes or create tensors."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from chop.ir.modes import ModeConstant, RandomDraw
from chop.ir.ops.by_name import tensor_op
from chop.ir.ops.row import GET_ATTR, IMPLICIT_FUNC, OUTPUT, PLACEHOLDER, Op


def _view(name: str, names: str = "", **columns: Any) -> Op:
    return tensor_op(name, names, type=IMPLICIT_FUNC, is_view=True, **columns)


def _made(name: str, names: str = "", **columns: Any) -> Op:
    return tensor_op(name, names, type=IMPLICIT_FUNC, **columns)


VIEWS = (
    _view(
        "flatten",
        "flatten ravel",
        modules=(nn.Flatten,),
        copies_if_strided=True,
        dims="regroup",
        carries_factor=(0,),
        rtl="wire_view",
    ),
    _view(
        "unflatten", modules=(nn.Unflatten,), dims="unflatten", carries_factor=(0,), rtl="wire_view"
    ),
    _view("view", "view view_as", dims="reshape", carries_factor=(0,), rtl="wire_view"),
    _view(
        "reshape",
        "reshape reshape_as",
        copies_if_strided=True,
        dims="reshape",
        carries_factor=(0,),
        rtl="wire_view",
    ),
    _view("permute", dims="permute", carries_factor=(0,), rtl="wire_permute"),
    _view(
        "transpose",
        "transpose swapaxes swapdims movedim moveaxis t adjoint",
        dims="permute",
        carries_factor=(0,),
        rtl="wire_permute",
    ),
    _view(
        "contiguous", copies_if_strided=True, dims="elementwise", carries_factor=(0,), rtl="wire"
    ),
    _view("squeeze", "squeeze squeeze_", dims="regroup", carries_factor=(0,), rtl="wire_view"),
    _view(
        "unsqueeze", "unsqueeze unsqueeze_", dims="regroup", carries_factor=(0,), rtl="wire_view"
    ),
    _view(
        "expand",
        "expand expand_as broadcast_to broadcast_tensors",
        dims="expand",
        carries_factor=(0,),
        rtl="wire_pick",
    ),
    _made("repeat", "repeat tile"),
    _view("chunk", "chunk tensor_split", dims="split", rtl="wire_pick"),
    _view("split", "split split_with_sizes unsafe_split", dims="split", rtl="wire_pick"),
    _view("unbind", dims="unbind", rtl="wire_pick"),
    _view(
        "narrow",
        "narrow select diagonal diag diag_embed slice_scatter select_scatter",
        rtl="wire_pick",
    ),
    _made(
        "size",
        "size numel dim ndimension stride storage_offset nelement element_size",
        dims="facts",
        rtl="wire_size",
    ),
    _view("getitem", dims="getitem", carries_factor=(0,), rtl="wire_pick"),
    _made("setitem"),
    _view(
        "to",
        "to type float half bfloat16 double int long short bool cpu cuda type_as clone detach "
        "detach_ requires_grad_ item tolist numpy copy_ data_ptr is_floating_point is_complex "
        "view_as_real view_as_complex real imag complex polar as_tensor tensor from_numpy asarray",
        dims="elementwise",
        carries_factor=(0,),
    ),
    _made("new", "new_zeros new_ones new_full new_empty new_tensor"),
    _view("fill", "fill_ zero_ fill", dims="elementwise"),
    _made(
        "constant",
        "zeros ones full empty zeros_like ones_like full_like empty_like arange linspace eye "
        "scalar_tensor hann_window hamming_window",
        dims="elementwise",
    ),
    _made(
        "random",
        "rand randn randint randperm rand_like randn_like randint_like bernoulli bernoulli_ "
        "normal normal_ uniform_ multinomial random_ exponential_",
        is_random=True,
    ),
    _made("index"),
    _made("finfo", "finfo iinfo", dims="facts"),
)

ROWS = (
    *VIEWS,
    # What Python computes of sizes.
    Op(
        "size_arithmetic",
        IMPLICIT_FUNC,
        functions=(max, min, round, math.ceil, math.floor, math.trunc),
        rtl="wire_size",
    ),
    Op("getattr", IMPLICIT_FUNC, functions=(getattr,), dims="facts", rtl="wire_size"),
    # Not random within a mode, but not a constant either: training has another value.
    Op("mode_constant", IMPLICIT_FUNC, modules=(ModeConstant,), is_random=True),
    Op("random_draw", IMPLICIT_FUNC, modules=(RandomDraw,), is_random=True),
    Op("placeholder", PLACEHOLDER),
    Op("get_attr", GET_ATTR),
    Op("output", OUTPUT),
)

MOVEMENTS = (
    tensor_op("cat", "cat concat concatenate", dims="cat", rtl="stream_concat"),
    tensor_op("stack", "stack hstack vstack dstack", dims="stack"),
    tensor_op("gather", "gather take_along_dim"),
    tensor_op(
        "scatter", "scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_"
    ),
    tensor_op("index_select"),
    tensor_op(
        "index_add",
        "index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_put index_put_",
    ),
    tensor_op("masked_select", "masked_select masked_scatter masked_scatter_"),
    tensor_op("topk", "topk sort argsort kthvalue"),
    tensor_op("roll", dims="along_dimension", rtl="wire_pick"),
    tensor_op("flip", "flip fliplr flipud rot90", dims="along_dimension", rtl="wire_pick"),
    tensor_op("repeat_interleave"),
    tensor_op("tril", "tril triu tril_ triu_"),
    tensor_op("bucketize", "bucketize searchsorted histc bincount unique"),
    tensor_op("meshgrid", "meshgrid cartesian_prod"),
    tensor_op("nonzero", "nonzero count_nonzero"),
    tensor_op("as_strided"),
)
"""Ops that move elements."""
