"""Models as ONNX files with quantised weights and activations, and as QONNX for any width."""

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
from chop.export.lowered import GRAPH, Lowered, example_of, export_lowered
from chop.export.onnx_package import onnx_package
from chop.export.report import ExportReport, TensorRecord
from chop.export.weights import Weight, weights_of
from chop.files import whole_file
from chop.ir.graph import MaseGraph
from chop.ir.outputs import template_of

OPSET = 21
QONNX_DOMAIN = "qonnx.custom_op.general"
SIZES = "mase.example_sizes"
"""Where a file keeps the sizes of the inputs it was written with, so that reading it can run it."""
EXTERNAL_FROM = 1 << 30
"""Bytes from which tensors go into a file of their own, beside the model."""
_BITS_OF_TYPE = {4: ("INT4", "UINT4"), 8: ("INT8", "UINT8"), 16: ("INT16", "UINT16")}


@takes(ExportError, mg=GRAPH, path=NEW_FILE, inputs=MAPPING | NONE)
def to_onnx(
    mg: MaseGraph,
    path: str | Path,
    *,
    inputs: Mapping[str, Any] | None = None,
    dynamic: bool = True,
    fallback: str | None = None,
) -> ExportReport:
    """Write an ONNX file of opset 21, and say what was written.

    Weights in formats of integers are int4 or int8 behind `DequantizeLinear`, by tensor, channel
    or block; `fp8` is float8; `mxfp` of 4 bits int8 in blocks. Activations in `integer` and
    `scale_integer` pass `QuantizeLinear` and `DequantizeLinear`. Sizes that the graph leaves open
    are open in the file (`dynamic=False`: none is). What the target lacks is an error, or with
    `fallback="float"` left as values. `inputs` are the inputs it is exported with; by default those
    of the capture.
    """
    plan = _Plan("onnx", _qdq_translation, _dequantised, dynamic, fallback)
    return _write(mg, Path(path), plan, inputs)


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

    Weights are floats, each behind a `Quant` that says its scale and width and changes none of its
    values; activations pass one as well. The tools of QONNX want all sizes known; `dynamic=True`
    leaves those open that the graph does.
    """
    plan = _Plan("qonnx", _quant_translation, _quant_node, dynamic, fallback)
    return _write(mg, Path(path), plan, inputs)


@dataclass(frozen=True)
class _Plan:
    """How a target says that values are rounded."""

    target: str
    translation: Callable[[], dict[Any, Any]]
    weight: Callable[[str, Weight], Any]
    is_dynamic: bool
    fallback: str | None


def _write(
    mg: MaseGraph, path: Path, plan: _Plan, inputs: Mapping[str, Any] | None
) -> ExportReport:
    fallback = plan.fallback
    if fallback not in (None, "float"):
        raise ExportError(f"to_{plan.target}: fallback is {fallback!r}. Allowed: None, 'float'.")
    onnx = onnx_package("onnx")
    onnx_package("onnxscript")
    example = example_of(mg, inputs, plan.target)
    weights = weights_of(mg)
    lowered = Lowered(mg, plan.target, fallback)
    others = _keep_tensors(lowered.graph, example)
    proto = _exported(lowered.graph, example, plan)
    _name_outputs(proto, lowered.graph, example)
    report = ExportReport(plan.target, path, dropped=[*lowered.dropped, *others])
    _rewrite(proto, plan, weights, report)
    proto.metadata_props.add(key=SIZES, value=example_sizes(example))
    _save(onnx, proto, path)
    return report


def _exported(graph: MaseGraph, example: Mapping[str, Any], plan: _Plan) -> Any:
    program = export_lowered(graph, example, is_dynamic=plan.is_dynamic)
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # it lists packages that are not installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                verbose=False,
                opset_version=OPSET,
                custom_translation_table=plan.translation(),
            )
    except torch.onnx.errors.OnnxExporterError as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise ExportError(
            f"to_{plan.target}: torch.onnx cannot write this model: {reason}"
        ) from error
    finally:
        quiet.setLevel(level)
    assert made is not None, "an exporter gives a program"
    return made.model_proto


def _keep_tensors(graph: MaseGraph, example: Mapping[str, Any]) -> list[str]:
    """Take outputs that are numbers or None from a dict or tuple of them, and say which."""
    output = graph.fx_graph.output_node()
    told = output.args[0]
    if template_of(graph.model) is not None or not isinstance(told, dict | tuple | list):
        return []
    with torch.no_grad():
        made = graph.model(**example)
    keys = list(told) if isinstance(told, dict) else range(len(told))
    gone = [key for key in keys if made[key] is None or isinstance(made[key], int | float | str)]
    if not gone or len(gone) == len(told):
        return []
    if isinstance(told, dict):
        output.args = ({k: v for k, v in told.items() if k not in gone},)
    else:
        output.args = (type(told)(v for i, v in enumerate(told) if i not in gone),)
    graph.recompile()
    return [f"not written: output {key!r}, which is no tensor" for key in gone]


def _name_outputs(proto: Any, mg: MaseGraph, example: Mapping[str, Any]) -> None:
    """Give outputs the names that the model gives them, where it gives any."""
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
    """The path of every tensor in a nested output; none where it is one without names."""
    if isinstance(value, Tensor):
        return [name] if name else []
    pairs: Any = ()
    if isinstance(value, Mapping):
        pairs = value.items()
    elif isinstance(value, list | tuple):
        pairs = ((f"output_{i}", each) for i, each in enumerate(value))
    prefix = f"{name}." if name else ""
    return [found for key, each in pairs for found in _output_names(each, f"{prefix}{key}")]


def example_sizes(example: Mapping[str, Any]) -> str:
    """The shapes of the inputs, as text."""
    return json.dumps({k: list(v.shape) for k, v in example.items() if isinstance(v, Tensor)})


def _save(onnx: Any, proto: Any, path: Path) -> None:
    size = proto.ByteSize()
    with whole_file(path) as draft:
        if size < EXTERNAL_FROM:
            onnx.save_model(proto, draft)
        else:
            data = f"{path.name}.data"
            onnx.save_model(proto, draft, save_as_external_data=True, location=data)


# -- activations -----------------------------------------------------------------------------


def _qdq_translation() -> dict[Any, Any]:
    op = onnx_package("onnxscript").opset21

    def translate(x, scale, zero_point, low, high, axis):  # type: ignore[no-untyped-def]
        bits = next((b for b in (8, 16) if _fits(low, high, b)), None)
        if bits is None:  # wider than the types of QuantizeLinear: by arithmetic
            whole = op.Add(op.Round(op.Div(x, scale)), float(zero_point))
            kept = op.Clip(whole, float(low), float(high))
            return op.Mul(op.Sub(kept, float(zero_point)), scale)
        kind = _BITS_OF_TYPE[bits][0 if low < 0 else 1].lower()
        zero = op.Constant(value=_onnx_scalar(zero_point, kind))
        bottom = op.Mul(scale, float(low - zero_point))
        top = op.Mul(scale, float(high - zero_point))
        inside = op.Min(op.Max(x, bottom), top)
        codes = op.QuantizeLinear(inside, scale, zero, axis=axis)
        return op.DequantizeLinear(codes, scale, zero, axis=axis)

    return {torch.ops.mase.round_to_steps.default: translate}


def _fits(low: int, high: int, bits: int) -> bool:
    is_signed = low < 0
    return low >= (-(2 ** (bits - 1)) if is_signed else 0) and high < 2 ** (bits - is_signed)


def _onnx_scalar(value: int, kind: str) -> Any:
    return onnx_package("onnx").numpy_helper.from_array(np.array(value, dtype=kind))


def _quant_translation() -> dict[Any, Any]:
    op, quant = onnx_package("onnxscript").opset21, _quant_op()

    def translate(x, scale, zero_point, low, high, axis):  # type: ignore[no-untyped-def]
        is_signed = low < 0
        below = int(-low - 1).bit_length() if is_signed else 0
        bits = max(int(high).bit_length(), below) + is_signed
        zero = op.Constant(value_float=float(zero_point))
        width = op.Constant(value_float=float(bits))
        settings = {"signed": int(is_signed), "narrow": int(is_signed and -low == high)}
        return quant(x, scale, zero, width, rounding_mode="ROUND", **settings)

    return {torch.ops.mase.round_to_steps.default: translate}


def _quant_op() -> Any:
    """`Quant` as an operator that can be called; onnx has no schema for it."""
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


# -- weights ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rewritten:
    """What stands in the place of a weight: tensors, the node that makes it, and its type."""

    tensors: list[Any]
    node: Any
    kind: str
    nbytes: int


def _rewrite(
    proto: Any,
    plan: _Plan,
    weights: Mapping[str, Weight],
    report: ExportReport,
) -> None:
    nodes = []
    for tensor in list(proto.graph.initializer):
        weight = weights.get(tensor.name)
        if weight is None:
            continue
        made = None if weight.format is None else plan.weight(tensor.name, weight)
        if made is None and weight.format is not None and weight.values.dim() > 1:
            _refuse(tensor.name, weight, plan)
        if made is not None:
            proto.graph.initializer.remove(tensor)
            proto.graph.initializer.extend(made.tensors)
            nodes.append(made.node)
        report.records.append(_record(tensor, weight, made))
    kept = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes, *kept])
    if plan.target == "qonnx" and not any(o.domain == QONNX_DOMAIN for o in proto.opset_import):
        proto.opset_import.add(domain=QONNX_DOMAIN, version=1)


def _refuse(name: str, weight: Weight, plan: _Plan) -> None:
    if plan.fallback is None:
        raise ExportError(
            f"to_{plan.target}: '{name}' is in {weight.text}: the target has integers with one "
            "scale for a tensor, channel or block, and float8. Nearest: "
            f"scale_integer of {8 if weight.format is None else min(8, int(weight.format.bits))} "
            'bits. Give fallback="float" for its values.'
        )


def _record(tensor: Any, weight: Weight, made: _Rewritten | None) -> TensorRecord:
    count = weight.values.numel()
    size = weight.values.nbytes if made is None else made.nbytes
    kind = str(weight.values.dtype).removeprefix("torch.") if made is None else made.kind
    note = "dequantised" if made is None and weight.format is not None else ""
    return TensorRecord(tensor.name, tensor.name, weight.text, kind, count, size, True, note)


def _dequantised(name: str, weight: Weight) -> _Rewritten | None:
    """A weight as codes behind `DequantizeLinear`, where that gives its values."""
    if weight.values.dtype != torch.float32:
        return None
    form = weight.format
    if form is not None and form.float_dtype is not None and form.onnx_type is not None:
        codes = weight.values.to(form.float_dtype).view(torch.uint8).numpy()
        shape, one = weight.values.shape, torch.tensor(1.0)
        return _behind_scale(name, shape, form.onnx_type, codes, one, {})
    found = _whole_steps(weight)
    if found is None:
        return None
    whole, steps = found
    shared = shared_scales(steps, weight)
    if shared is None or whole.min() < -128 or whole.max() > 127:
        return None
    scale, where = shared
    if whole.min() >= -8 and whole.max() <= 7:
        codes, kind = _two_in_a_byte(whole), "INT4"
    else:
        codes, kind = whole.to(torch.int8).numpy(), "INT8"
    return _behind_scale(name, weight.values.shape, kind, codes, scale, where)


def _whole_steps(weight: Weight) -> tuple[Tensor, Tensor] | None:
    """A weight as whole numbers of steps."""
    steps, values = weight.steps(), weight.values.float()
    if steps is None:
        return None
    whole = torch.where(steps == 0, 0.0, values / steps).round()
    return (whole, steps) if torch.equal(whole * steps, values) else None


def shared_scales(steps: Tensor, weight: Weight) -> tuple[Tensor, dict[str, int]] | None:
    """The scales with the attributes that say what shares one; the coarsest way there is."""
    if (steps == steps.reshape(-1)[0]).all():
        return steps.reshape(-1)[0].clone(), {}
    for axis in range(steps.dim()):
        rows = steps.movedim(axis, 0).reshape(steps.shape[axis], -1)
        if (rows == rows[:, :1]).all():
            return rows[:, 0].clone(), {"axis": axis}
    form = weight.format
    size = getattr(form, "group_size", None) or getattr(form, "block_size", None)
    axis = getattr(form, "axis", -1) if hasattr(form, "block_size") else -1
    if not isinstance(size, int) or size < 1 or steps.shape[axis] % size:
        return None
    first = steps.index_select(axis, torch.arange(0, steps.shape[axis], size))
    if not torch.equal(first.repeat_interleave(size, axis), steps):
        return None
    return first.contiguous(), {"axis": axis % steps.dim(), "block_size": size}


def _two_in_a_byte(whole: Tensor) -> np.ndarray:
    flat = (whole.to(torch.int16) & 15).to(torch.uint8).reshape(-1).numpy()
    padded = np.concatenate([flat, np.zeros(len(flat) % 2, np.uint8)])
    made: np.ndarray = padded[::2] | (padded[1::2] << 4)
    return made


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
    kept = "blocks" if "block_size" in where else "channels" if where else "tensor"
    size = codes.nbytes + 4 * scale.numel()
    return _Rewritten([data, scales], node, f"{kind} by {kept}", size)


def _quant_node(name: str, weight: Weight) -> _Rewritten | None:
    """A weight behind a `Quant` that says what its values are."""
    found = _whole_steps(weight)
    if found is None:
        return None
    whole, steps = found
    onnx = onnx_package("onnx")
    low, high = int(whole.min()), int(whole.max())
    form = weight.format
    bits = form.element_bits if hasattr(form, "element_bits") else int(form.bits)  # type: ignore[union-attr]
    bits = max(bits, high.bit_length() + 1, (-low - 1).bit_length() + 1 if low < 0 else 0)
    values = onnx.numpy_helper.from_array(weight.values.float().numpy(), f"{name}:values")
    scale = _broadcast_scale(steps)
    parts = {"scale": scale.numpy(), "zero": np.float32(0), "bits": np.float32(bits)}
    made = [onnx.numpy_helper.from_array(np.asarray(v), f"{name}:{k}") for k, v in parts.items()]
    node = onnx.helper.make_node(
        "Quant",
        [values.name, *(t.name for t in made)],
        [name],
        name=f"{name}:quant",
        domain=QONNX_DOMAIN,
        signed=1,
        narrow=0,
        rounding_mode="ROUND",
    )
    return _Rewritten([values, *made], node, f"Quant {bits} bits", weight.values.nbytes)


def _broadcast_scale(steps: Tensor) -> Tensor:
    """The scales in the smallest shape that broadcasts with the weight."""
    for axis in range(steps.dim()):
        first = steps.narrow(axis, 0, 1)
        if torch.equal(first.expand_as(steps), steps):
            steps = first
    return steps.contiguous()
