"""Number formats of a graph's values, as hardware reads them from the metadata.

A format is applied where the node brings a value to it; a value that no node brought to a format is
exact. If all readers of a value apply one format (`formats_read`), casting at the producer instead
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import fx

from chop.errors import HardwareError
from chop.hw.arith.golden import ROUNDINGS, Fixed, Span
from chop.hw.lower.calls import gives_tensor
from chop.hw.lower.lowerings import LOWERINGS
from chop.hw.lower.mxint_values import operand_blocks, result_blocks
from chop.ir.meta import ValueMeta, mase_meta
from chop.ir.node_arguments import operand_nodes
from chop.ir.ops import Op
from chop.nn.quantizers import Integer, Quantizer

FindOp = Callable[[fx.Node], Op | None]
"""The row of a node; None for one that the outputs do not need."""


def operand_format(node: fx.Node, name: str) -> Fixed | None:
    """Return the format that `node` applies to an operand or parameter; None: exact."""
    return _applied(node, f"args.{name}", (mase_meta(node).common.args or {}).get(name))


def result_format(node: fx.Node) -> Fixed | None:
    """Return the format that `node` applies to its result; None: exact, or MXINT."""
    if result_blocks(node) is not None:
        return None
    results = mase_meta(node).common.results or {}
    return _applied(node, "results.data_out_0", results.get("data_out_0"))


def parameter_format(node: fx.Node, name: str) -> Fixed:
    """Return the format of a weight or bias; raise if it has none."""
    meta = mase_meta(node).common["args"][name]
    number = _applied(node, f"args.{name}", meta)
    if number is None:
        raise HardwareError(
            f"node '{node.name}': args.{name} is {meta.type} {meta.precision}. Hardware needs type "
            f"'fixed' and precision [width, frac_width]: quantise the graph or set both by hand."
        )
    return number


def _applied(node: fx.Node, where: str, meta: ValueMeta | None) -> Fixed | None:
    if meta is None or not meta.is_applied or meta.format is None:
        return None
    return _fixed(node, where, meta.format)


def _fixed(node: fx.Node, where: str, number: Quantizer) -> Fixed:
    if type(number) is not Integer:
        raise HardwareError(
            f"node '{node.name}': {where} is in the format '{number.name}'. Allowed in hardware: "
            f"'integer' (fixed point), and 'mxint' for tensors that are computed and for the "
            f"parameters of linear."
        )
    if number.rounding not in ROUNDINGS:
        raise HardwareError(
            f"node '{node.name}': {where} has rounding = '{number.rounding}'. Allowed in "
            f"hardware: {', '.join(ROUNDINGS)}."
        )
    return Fixed.of(number)


def formats_read(node: fx.Node, find: FindOp) -> set[Fixed | None]:
    """Return the formats that readers of `node` apply to its result; None: exact."""
    applied: set[Fixed | None] = set()
    for user in node.users:
        applied |= {None} if user.op == "output" else _read_by(user, node, find)
    return applied


def _read_by(user: fx.Node, node: fx.Node, find: FindOp) -> set[Fixed | None]:
    op = find(user)
    if op is None or (LOWERINGS[op.rtl].reads_size and not gives_tensor(user)):
        return set()  # sizes are no numbers
    lowering = LOWERINGS[op.rtl]
    names = [name for name, source in operand_nodes(user, op).items() if source is node]
    if any(operand_blocks(user, name) for name in names):
        return {None}  # blocks are made of exact numbers
    own = {operand_format(user, name) for name in names}
    if own != {None} or not (lowering.is_wiring or lowering.is_monotone):
        return own or {None}
    if result_blocks(user) is not None:
        return {None}
    behind = {result_format(user)} - {None} or formats_read(user, find)
    keeps_order = all(f is not None and f.overflow == "saturate" for f in behind)
    return behind if lowering.is_wiring or keeps_order else {None}


def one_format(formats: Iterable[Fixed | None]) -> Fixed | None:
    """Return the only one of `formats`; None if there are several, or a reader is exact."""
    distinct = set(formats)
    return distinct.pop() if len(distinct) == 1 else None


def union(formats: Iterable[Fixed]) -> Fixed:
    """Return the narrowest format with the numbers of all of `formats`."""
    listed = list(formats)
    frac = max(f.frac_width for f in listed)
    low = min(f.low << (frac - f.frac_width) for f in listed)
    high = max(f.high << (frac - f.frac_width) for f in listed)
    width = Span(low, high, frac).width
    is_signed = any(f.is_signed for f in listed)
    return Fixed(width if is_signed else width - 1, frac, is_signed)
