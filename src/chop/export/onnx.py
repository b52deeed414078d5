"""Writer of ONNX files with quantised weights and activations, and of QONNX for any width."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.arguments import MAPPING, NEW_FILE, NONE, takes
from chop.errors import ExportError
from chop.export.export_report import ExportReport, TensorRecord
from chop.export.exported_weights import Weight, weights_of
from chop.export.lowered import GRAPH, ExportableGraph, example_of, export_lowered
from chop.export.onnx_package import onnx_package
from chop.export.root_tensors import move_root_tensors, restore_root_names
from chop.files import whole_file
from chop.ir.graph import MaseGraph
from chop.ir.outputs import template_of

OPSET = 21
QONNX_DOMAIN = "qonnx.custom_op.general"
SIZES = "mase.example_sizes"
"""Metadata key for the input sizes of the export, so that a reader can run the model."""
EXTERNAL_FROM = 1 << 30
"""Bytes from which tensors are stored in a separate file."""


@takes(ExportError, mg=GRAPH, path=NEW_FILE, inputs=MAPPING | NONE)
def to_onnx(
    mg: MaseGraph,
    path: str | Path,
    *,
    inputs: Mapping[str, Any] | None = None,
    dynamic: bool = True,
    fallback: str | None = None,
) -> ExportReport:
    """Write an ONNX file of opset 21, and return a report.

    Weights in integer formats are int4, int8 or int16 with `DequantizeLinear`, by tensor, channel
    or block; `fp8` is float8; 4-bit `mxfp` is int8 in blocks. Activations in `integer` and
    `scale_integer` pass `QuantizeLinear` and `DequantizeLinear`. Dynamic sizes of the graph are
    dynamic in the file, unless `dynamic=False`. Other formats raise ExportError, or with
    `fallback="float"` are written as values. `inputs` are the example inputs of the export; by
    default those of the capture.
    """
    return _write(mg, path, _Target("onnx", _qdq, _dequantised, dynamic, fallback), inputs)


@takes(ExportError, mg=GRAPH, path=NEW_FILE, inputs=MAPPING | NONE)
def to_qonnx(
    mg: MaseGraph,
    path: str | Path,
    *,
    inputs: Mapping[str, Any] | None = None,
    dynamic: bool = False,
    fallback: str | None = None,
) -> ExportReport:
    """Write an ONNX file with nodes `Quant` of QONNX, for integers of any width.

    Weights are floats, each with a `Quant` of its scale and width, which does not change values;
    activations pass one as well. The tools of QONNX need static sizes; `dynamic=True` keeps those
    of the graph dynamic.
    """
    return _write(mg, path, _Target("qonnx", _quant, _quant_node, dynamic, fallback), inputs)


@dataclass(frozen=True)
class _Target:
    """Target: the translation of `round_to_steps`, and the encoding of weights."""

    name: str
    translation: Callable[[], Callable[..., Any]]
    weight: Callable[[str, Weight], Any]
    is_dynamic: bool
    fallback: str | None


def _write(
    mg: MaseGraph, path: str | Path, target: _Target, inputs: Mapping[str, Any] | None
) -> ExportReport:
    fallback = target.fallback
    if fallback not in (None, "float"):
        raise ExportError(f"to_{target.name}: fallback is {fallback!r}. Allowed: None, 'float'.")
    onnx = onnx_package("onnx")
    onnx_package("onnxscript")
    example = example_of(mg, inputs, target.name)
    weights = weights_of(mg)
    lowered = ExportableGraph(mg, target.name, fallback)
    others = _keep_tensors(lowered.graph, example)
    root = move_root_tensors(lowered.graph)
    proto = _exported(lowered.graph, example, target)
    restore_root_names(proto, root)
    _name_outputs(proto, lowered.graph, example)
    report = ExportReport(target.name, Path(path), dropped=[*lowered.dropped, *others])
    _rewrite(proto, target, weights, report)
    sizes = {k: list(v.shape) for k, v in example.items() if isinstance(v, Tensor)}
    proto.metadata_props.add(key=SIZES, value=json.dumps(sizes))
    with whole_file(report.path) as draft:
        if proto.ByteSize() < EXTERNAL_FROM:
            onnx.save_model(proto, draft)
        else:
            data = f"{report.path.name}.data"
            onnx.save_model(proto, draft, save_as_external_data=True, location=data)
    return report


def _exported(graph: MaseGraph, example: Mapping[str, Any], target: _Target) -> Any:
    program = export_lowered(graph, example, is_dynamic=target.is_dynamic)
    operators = {torch.ops.mase.round_to_steps.default: target.translation()}
    return program_as_onnx(program, f"to_{target.name}", operators)


def rounding_operators() -> dict[Any, Callable[..., Any]]:
    """Return the translation of the operators of MASE to ONNX."""
    return {torch.ops.mase.round_to_steps.default: _qdq()}


def program_as_onnx(
    program: torch.export.ExportedProgram, where: str, operators: dict[Any, Callable[..., Any]]
) -> Any:
    """Return a program of `torch.export` as an ONNX model; `where` is the start of an error."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it lists packages that are not installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                verbose=False,
                opset_version=OPSET,
                custom_translation_table=operators,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise ExportError(f"{where}: torch.onnx cannot write this model: {reason}") from error
    finally:
        log.setLevel(level)
    assert exported is not None, "torch.onnx.export returns a program"
    return exported.model_proto


def _keep_tensors(graph: MaseGraph, example: Mapping[str, Any]) -> list[str]:
    """Drop outputs in a dict or tuple that are numbers, text or None; return notes on them."""
    output = graph.fx_graph.output_node()
    values = output.args[0]
    if template_of(graph.model) is not None or not isinstance(values, dict | tuple | list):
        return []
    with torch.no_grad():
        results = graph.model(**example)
    keys = list(values) if isinstance(values, dict) else range(len(values))
    dropped = [k for k in keys if results[k] is None or isinstance(results[k], int | float | str)]
    if not dropped or len(dropped) == len(values):
        return []
    if isinstance(values, dict):
        output.args = ({k: v for k, v in values.items() if k not in dropped},)
    else:
        output.args = (type(values)(v for i, v in enumerate(values) if i not in dropped),)
    graph.recompile()
    return [f"not written: output {key!r}, which is no tensor" for key in dropped]


def _name_outputs(proto: Any, mg: MaseGraph, example: Mapping[str, Any]) -> None:
    """Rename outputs to the keys of the model's output, if it has any."""
    with torch.no_grad():
        keys = _output_names(mg.model(**example))
    values = list(proto.graph.output)
    if len(keys) != len(values) or len({v.name for v in values}) != len(values):
        return
    names = {value.name: key for value, key in zip(values, keys, strict=True)}
    for value in values:
        value.name = names[value.name]
    for node in proto.graph.node:
        node.output[:] = [names.get(n, n) for n in node.output]
        node.input[:] = [names.get(n, n) for n in node.input]


def _output_names(value: Any, name: str = "") -> list[str]:
    """Return the path of every tensor in a nested output; empty if it is a single tensor."""
    if isinstance(value, Tensor):
        return [name] if name else []
    pairs: Any = ()
    if isinstance(value, Mapping):
        pairs = value.items()
    elif isinstance(value, list | tuple):
        pairs = ((f"output_{i}", each) for i, each in enumerate(value))
    prefix = f"{name}." if name else ""
    return [path for key, each in pairs for path in _output_names(each, f"{prefix}{key}")]


def _qdq() -> Callable[..., Any]:
    op = onnx_package("onnxscript").opset21

    def translate(x, scale, zero_point, low, high, axis):  # type: ignore[no-untyped-def]
        is_signed = low < 0
        for bits in (8, 16):
            lowest = -(2 ** (bits - 1)) if is_signed else 0
            if low >= lowest and high < 2 ** (bits - is_signed):
                break
        else:  # wider than the types of QuantizeLinear: by arithmetic
            whole = op.Add(op.Round(op.Div(x, scale)), float(zero_point))
            clipped = op.Clip(whole, float(low), float(high))
            return op.Mul(op.Sub(clipped, float(zero_point)), scale)
        array = np.array(zero_point, dtype=f"int{bits}" if is_signed else f"uint{bits}")
        zero = op.Constant(value=onnx_package("onnx").numpy_helper.from_array(array))
        bottom = op.Mul(scale, float(low - zero_point))
        top = op.Mul(scale, float(high - zero_point))
        inside = op.Min(op.Max(x, bottom), top)
        codes = op.QuantizeLinear(inside, scale, zero, axis=axis)
        return op.DequantizeLinear(codes, scale, zero, axis=axis)

    return translate


def _quant() -> Callable[..., Any]:
    op, quant = onnx_package("onnxscript").opset21, _quant_op()

    def translate(x, scale, zero_point, low, high, axis):  # type: ignore[no-untyped-def]
        is_signed = low < 0
        below = int(-low - 1).bit_length() if is_signed else 0
        bits = max(int(high).bit_length(), below) + is_signed
        zero = op.Constant(value_float=float(zero_point))
        width = op.Constant(value_float=float(bits))
        settings = {"signed": int(is_signed), "narrow": int(is_signed and -low == high)}
        return quant(x, scale, zero, width, rounding_mode="ROUND", **settings)

    return translate


def _quant_op() -> Any:
    """Return `Quant` as a callable operator; onnx has no schema for it."""
    onnx, values = onnx_package("onnx"), onnx_package("onnxscript").values
    defs = onnx.defs
    kinds = defs.OpSchema.AttrType
    operands = ("x", "scale", "zeropt", "bitwidth")
    schema = defs.OpSchema(
        "Quant",
        QONNX_DOMAIN,
        1,
        inputs=[defs.OpSchema.FormalParameter(name, "T") for name in operands],
        outputs=[defs.OpSchema.FormalParameter("y", "T")],
        type_constraints=[("T", ["tensor(float)"], "")],
        attributes=[
            defs.OpSchema.Attribute("signed", kinds.INT, required=True),
            defs.OpSchema.Attribute("narrow", kinds.INT, required=True),
            defs.OpSchema.Attribute("rounding_mode", kinds.STRING, required=True),
        ],
    )
    return values.Op(values.Opset(QONNX_DOMAIN, 1), "Quant", schema)


@dataclass(frozen=True)
class _Rewritten:
    """Replacement of a weight: tensors, the node that computes it, and its type."""

    tensors: list[Any]
    node: Any
    kind: str
    nbytes: int


def _rewrite(
    proto: Any, target: _Target, weights: Mapping[str, Weight], report: ExportReport
) -> None:
    nodes = []
    for tensor in list(proto.graph.initializer):
        weight = weights.get(tensor.name)
        if weight is None:
            continue
        kind, size = str(weight.values.dtype).removeprefix("torch."), weight.values.nbytes
        note = ""
        if weight.format is not None:
            coded = target.weight(tensor.name, weight)
            if coded is not None:
                proto.graph.initializer.remove(tensor)
                proto.graph.initializer.extend(coded.tensors)
                nodes.append(coded.node)
                kind, size = coded.kind, coded.nbytes
            elif weight.values.dim() > 1 and target.fallback is None:
                raise ExportError(
                    f"to_{target.name}: '{tensor.name}' is in {weight.text}: the target has "
                    "integers with one scale for a tensor, channel or block, and float8. Nearest: "
                    f"scale_integer of {min(8, int(weight.format.bits))} "
                    'bits. Give fallback="float" for its values.'
                )
            else:
                note = "dequantised"
        name, count = tensor.name, weight.values.numel()
        report.records.append(TensorRecord(name, name, weight.text, kind, count, size, True, note))
    others = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes, *others])
    if target.name == "qonnx" and not any(o.domain == QONNX_DOMAIN for o in proto.opset_import):
        proto.opset_import.add(domain=QONNX_DOMAIN, version=1)


def _dequantised(name: str, weight: Weight) -> _Rewritten | None:
    """Return a weight as codes with `DequantizeLinear`, or None if that is not exact."""
    if weight.values.dtype != torch.float32:
        return None
    form = weight.format
    if form is not None and form.float_dtype is not None and form.onnx_type is not None:
        codes = weight.values.to(form.float_dtype).view(torch.uint8).numpy()
        shape, one = weight.values.shape, torch.tensor(1.0)
        return _behind_scale(name, shape, form.onnx_type, codes, one, {})
    multiples = _whole_steps(weight)
    if multiples is None:
        return None
    whole, steps = multiples
    shared = shared_scales(steps, weight)
    if shared is None or whole.min() < -(2**15) or whole.max() >= 2**15:
        return None
    scale, where = shared
    if whole.min() < -128 or whole.max() > 127:
        codes, kind = whole.to(torch.int16).numpy(), "INT16"
    elif whole.min() >= -8 and whole.max() <= 7:
        flat = (whole.to(torch.int16) & 15).to(torch.uint8).reshape(-1).numpy()
        padded = np.concatenate([flat, np.zeros(len(flat) % 2, np.uint8)])
        codes, kind = padded[::2] | (padded[1::2] << 4), "INT4"
    else:
        codes, kind = whole.to(torch.int8).numpy(), "INT8"
    return _behind_scale(name, weight.values.shape, kind, codes, scale, where)


def _whole_steps(weight: Weight) -> tuple[Tensor, Tensor] | None:
    """Return a weight as integers and steps, or None if its values are no multiples of steps."""
    steps, values = weight.steps(), weight.values.float()
    if steps is None:
        return None
    whole = torch.where(steps == 0, 0.0, values / steps).round()
    return (whole, steps) if torch.equal(whole * steps, values) else None


def shared_scales(steps: Tensor, weight: Weight) -> tuple[Tensor, dict[str, int]] | None:
    """Return the scales and the attributes of the coarsest granularity, or None."""
    if (steps == steps.reshape(-1)[0]).all():
        return steps.reshape(-1)[0].clone(), {}
    for axis in range(steps.dim()):
        rows = steps.movedim(axis, 0).reshape(steps.shape[axis], -1)
        if (rows == rows[:, :1]).all():
            return rows[:, 0].clone(), {"axis": axis}
    form = weight.format
    size = getattr(form, "group_size", None) or getattr(form, "block_size", None)
    axis = getattr(form, "axis", -1) if hasattr(form, "block_size") else -1
    if not isinstance(size, int) or size < 1:
        return None
    first = steps.index_select(axis, torch.arange(0, steps.shape[axis], size))
    spread = first.repeat_interleave(size, axis).narrow(axis, 0, steps.shape[axis])
    if not torch.equal(spread, steps):  # the last block may be shorter
        return None
    return first.contiguous(), {"axis": axis % steps.dim(), "block_size": size}


def _behind_scale(
    name: str, shape: Any, kind: str, codes: np.ndarray, scale: Tensor, where: dict[str, int]
) -> _Rewritten:
    onnx = onnx_package("onnx")
    number = getattr(onnx.TensorProto, kind)
    data = onnx.helper.make_tensor(f"{name}:codes", number, list(shape), codes.tobytes(), raw=True)
    scales = onnx.numpy_helper.from_array(scale.float().numpy(), f"{name}:scale")
    node = onnx.helper.make_node(
        "DequantizeLinear", [data.name, scales.name], [name], name=f"{name}:values", **where
    )
    unit = "blocks" if "block_size" in where else "channels" if where else "tensor"
    size = codes.nbytes + 4 * scale.numel()
    return _Rewritten([data, scales], node, f"{kind} by {unit}", size)


def _quant_node(name: str, weight: Weight) -> _Rewritten | None:
    """Return a weight with a `Quant` that has its scale and width, or None."""
    multiples = _whole_steps(weight)
    if multiples is None:
        return None
    whole, steps = multiples
    onnx = onnx_package("onnx")
    low, high = int(whole.min()), int(whole.max())
    form = weight.format
    bits = form.element_bits if hasattr(form, "element_bits") else int(form.bits)  # type: ignore[union-attr]
    bits = max(bits, high.bit_length() + 1, (-low - 1).bit_length() + 1 if low < 0 else 0)
    values = onnx.numpy_helper.from_array(weight.values.float().numpy(), f"{name}:values")
    for axis in range(steps.dim()):  # the smallest shape that broadcasts with the weight
        first = steps.narrow(axis, 0, 1)
        if torch.equal(first.expand_as(steps), steps):
            steps = first
    parts = {"scale": steps.contiguous().numpy(), "zero": np.float32(0), "bits": np.float32(bits)}
    tensors = [onnx.numpy_helper.from_array(np.asarray(v), f"{name}:{k}") for k, v in parts.items()]
    node = onnx.helper.make_node(
        "Quant",
        [values.name, *(t.name for t in tensors)],
        [name],
        name=f"{name}:quant",
        domain=QONNX_DOMAIN,
        signed=1,
        narrow=0,
        rounding_mode="ROUND",
    )
    return _Rewritten([values, *tensors], node, f"Quant {bits} bits", weight.values.nbytes)
