"""Norms and rotations that decoders write out, each replaced by one call."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.kernels import QLinearPacked
from chop.kernels.ops import ROUNDED
from chop.kernels.rounded_norm import add_rounded_rms_norm, rounded_rms_norm
from chop.kernels.rows import rms_norm, rotate
from chop.passes.rewrite.node_patterns import (
    Match,
    NoMatchError,
    Pattern,
    check_unquantised,
    erase_unused,
    number,
    op_name,
)


def _expect(graph: MaseGraph, node: Any, op: str, what: str) -> fx.Node:
    if not isinstance(node, fx.Node) or op_name(graph, node) != op:
        raise NoMatchError(f"{what} is not '{op}' but '{node}'")
    return node


def _only_user(graph: MaseGraph, node: fx.Node, op: str) -> fx.Node:
    if len(node.users) != 1:
        raise NoMatchError(f"'{node.name}' has {len(node.users)} users")
    return _expect(graph, next(iter(node.users)), op, f"what reads '{node.name}'")


def _other(node: fx.Node, one: fx.Node) -> Any:
    """Return the operand of a product or sum other than `one`."""
    if len(node.args) != 2 or node.kwargs or one not in node.args:
        raise NoMatchError(f"'{node.name}' is not of two operands")
    first, second = node.args
    return second if first is one else first


# -- root mean square --------------------------------------------------------------------------


def find_rms_norm(graph: MaseGraph, site: fx.Node) -> Match:
    """Match `weight * (x * rsqrt(mean(x ** 2) + eps)).to(dtype)`, at the root."""
    add = _expect(graph, site.args[0], "add", f"what '{site.name}' reads")
    mean = _expect(graph, add.args[0], "mean", f"what '{add.name}' reads")
    dim = mean.args[1] if len(mean.args) > 1 else mean.kwargs.get("dim")
    if dim not in (-1, (-1,), [-1]) or not mean.kwargs.get("keepdim"):
        raise NoMatchError(f"'{mean.name}' is not over the last dimension")
    power = _expect(graph, mean.args[0], "pow", f"what '{mean.name}' reads")
    wide = power.args[0]
    if number(power.args[1]) != 2.0 or not isinstance(wide, fx.Node):
        raise NoMatchError(f"'{power.name}' is no square")
    scaled = _only_user(graph, site, "mul")
    if _other(scaled, site) is not wide:
        raise NoMatchError(f"'{scaled.name}' multiplies something else")
    last = next(iter(scaled.users)) if len(scaled.users) == 1 else scaled
    to = last if op_name(graph, last) == "to" else scaled
    product = _only_user(graph, to, "mul")
    weight = _other(product, to)
    if not isinstance(weight, fx.Node) or weight.op != "get_attr":
        raise NoMatchError(f"'{product.name}' does not multiply with a parameter")
    check_unquantised((site, add, mean, power, scaled, product))
    roles = {"site": [site], "add": [add], "wide": [wide], "product": [product], "weight": [weight]}
    return Match(roles)


def rewrite_rms_norm(graph: MaseGraph, match: Match) -> fx.Node:
    """Replace the last product by the norm."""
    product, weight, x = match.one("product"), match.one("weight"), match.one("wide")
    eps = number(match.one("add").args[1])
    if eps is None:
        raise NoMatchError(f"'{match.one('add').name}' adds no number")
    parameter = operator.attrgetter(str(weight.target))(graph.model)
    if parameter.dim() != 1:
        raise NoMatchError(f"'{weight.name}' is not a row")
    if op_name(graph, x) == "to" and x.args[1:] == (torch.float32,) and not x.kwargs:
        x = cast(fx.Node, x.args[0])
    return _replaced(product, rms_norm, (x, (parameter.shape[0],), weight, eps))


def _replaced(node: fx.Node, function: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
    """Replace `node` by a call of `function`, and erase everything that only it used."""
    with node.graph.inserting_before(node):
        new = node.graph.call_function(function, args)
    node.replace_all_uses_with(new)
    erase_unused(node)
    return new


# -- a norm whose readers round it ---------------------------------------------------------------


def find_rounded_norm(graph: MaseGraph, site: fx.Node) -> Match:
    """Match a norm that only packed layers read, all of which round it to the kernels' format."""
    if site.target is not rms_norm:
        raise NoMatchError(f"'{site.name}' is not the norm that pattern 'rms_norm' makes")
    readers = [u for u in site.users if u.target is not getattr or u.args[1] != "shape"]
    for user in readers:
        layer = node_module(user) if user.op == "call_module" else None
        if not isinstance(layer, QLinearPacked) or layer.quantizers.get("data_in") != ROUNDED:
            raise NoMatchError(f"'{user.name}' does not round '{site.name}' to {ROUNDED}")
        if not is_on_gpu(layer):
            raise NoMatchError(f"'{user.name}' is not on a GPU: its product rounds by itself")
    return Match({"site": [site], "reader": readers})


def is_on_gpu(layer: QLinearPacked) -> bool:
    """Return True if rounding the layer's input takes a separate launch."""
    return layer.codes.is_cuda


def rewrite_rounded_norm(graph: MaseGraph, match: Match) -> fx.Node:
    """Make the norm round its result instead of its readers, and add the sum before it."""
    site = match.one("site")
    for reader in match.all("reader"):
        layer = cast(QLinearPacked, node_module(reader))
        layer.quantizers = {k: v for k, v in layer.quantizers.items() if k != "data_in"}
    total: Any
    total, _, weight, eps = site.args
    is_sum = isinstance(total, fx.Node) and op_name(graph, total) == "add"
    if not is_sum or total.kwargs or [type(a) for a in total.args] != [fx.Node, fx.Node]:
        site.target = rounded_rms_norm
        return site
    with graph.fx_graph.inserting_before(total):
        row = graph.fx_graph.get_attr(str(cast(fx.Node, weight).target))
        operands = (*total.args, site.args[1], row, eps)
        new = graph.fx_graph.call_function(add_rounded_rms_norm, operands)
        parts = [graph.fx_graph.call_function(operator.getitem, (new, i)) for i in range(2)]
    for old, part in zip((total, site), parts, strict=True):
        old.replace_all_uses_with(part)
    erase_unused(site)
    erase_unused(total)
    return new


# -- rotation ----------------------------------------------------------------------------------


def find_rotation(graph: MaseGraph, site: fx.Node) -> Match:
    """Match `x * cos + cat((-x[..., half:], x[..., :half]), -1) * sin`, at the cat."""
    parts = site.args[0] if site.args else ()
    dim = site.kwargs.get("dim", site.args[1] if len(site.args) > 1 else 0)
    if not isinstance(parts, (tuple, list)) or len(parts) != 2 or dim != -1:
        raise NoMatchError(f"'{site.name}' does not join two halves of rows")
    negated = _expect(graph, parts[0], "neg", f"the first part of '{site.name}'")
    second, first = negated.args[0], parts[1]
    x = _half_of(second, 0)
    if x is None or _half_of(first, 1) is not x:
        raise NoMatchError(f"'{site.name}' does not join the halves of one tensor")
    turned = _only_user(graph, site, "mul")
    total = _only_user(graph, turned, "add")
    straight = _expect(graph, _other(total, turned), "mul", f"what '{total.name}' adds")
    if x not in straight.args:
        raise NoMatchError(f"'{straight.name}' does not multiply '{x.name}'")
    check_unquantised((site, negated, turned, straight, total))
    return Match(
        {"site": [site], "x": [x], "turned": [turned], "straight": [straight], "total": [total]}
    )


def _half_of(node: Any, end: int) -> fx.Node | None:
    """Return the tensor whose last dimension `node` halves; None if it is no half.

    `end` 0: `node` is the second half, from a start; 1: the first half, up to a stop.
    """
    if not isinstance(node, fx.Node) or node.target is not operator.getitem:
        return None
    x: Any
    index: Any
    x, index = node.args
    if not isinstance(index, tuple) or len(index) != 2 or index[0] is not Ellipsis:
        return None
    cut = index[1]
    if not isinstance(cut, slice) or cut.step is not None or (cut.stop, cut.start)[end] is not None:
        return None
    return x if _is_half(x, (cut.start, cut.stop)[end]) else None


def _is_half(x: Any, place: Any) -> bool:
    """Return True if `place` is half of the last size of `x`."""
    if not isinstance(place, fx.Node) or place.target is not operator.floordiv:
        return False
    size, two = place.args
    if two != 2 or not isinstance(size, fx.Node) or size.target is not operator.getitem:
        return False
    shape, which = size.args
    is_shape = isinstance(shape, fx.Node) and shape.target is getattr
    return is_shape and shape.args == (x, "shape") and which in (-1, 3)  # type: ignore[union-attr]


def rewrite_rotation(graph: MaseGraph, match: Match) -> fx.Node:
    """Replace the sum by the rotation."""
    x, total = match.one("x"), match.one("total")
    cos, sin = _other(match.one("straight"), x), _other(match.one("turned"), match.one("site"))
    return _replaced(total, rotate, (x, cos, sin))


RMS_NORM = Pattern("rms_norm", site=("rsqrt",), find=find_rms_norm, rewrite=rewrite_rms_norm)
ROUNDED_NORM = Pattern(
    "rounded_norm", site=("rms_norm",), find=find_rounded_norm, rewrite=rewrite_rounded_norm
)
ROTARY = Pattern("rotary", site=("cat",), find=find_rotation, rewrite=rewrite_rotation)
