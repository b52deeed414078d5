"""Prediction of the peak memory of a quantisation layer by layer.

The peak is the largest of the phases: the rotation of a layer, of the words' table and of the head,
the importance of rows or the losses of formats, which need the head of the model and the gradients
of one layer, and the calibration of a layer. Each phase adds up what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from chop.actions.decoder_stream import DecoderStream
from chop.actions.streamed_quantization import NOW, Batch, StreamPlan, StreamRequest
from chop.actions.streamed_rotation import ROTATE, ROWS_AT_ONCE, surroundings
from chop.errors import ConfigError
from chop.export.model_free import GIB
from chop.nn.quantizers import parse_format
from chop.passes.ptq.observe.curvature import AT_ONCE as PART
from chop.passes.ptq.observe.curvature import DRAWS
from chop.passes.ptq.observe.stored_matrix import PANEL_BYTES
from chop.passes.ptq.observe.stored_sums import WEIGHTS, are_stored

FLOAT_BYTES, DOUBLE_BYTES = 4, 8
SUMS = {True: 8, False: 2}
"""Matrices of (columns, columns) that the sums over inputs hold, with and without the float model:
the products and the drift of two halves, of both, and of the rows that are held back."""
SOLVER_SQUARES = {True: 6, False: 4}
"""Further such matrices while a weight is rounded: all rows, and the factor of the inverse."""
STORED_WEIGHTS = 3
"""Copies of a weight in single precision while it is rounded by sums in files: rounded plainly,
fitted to most rows, and to all."""
STORED_PANELS = 8
"""Panels of matrices in files that are in memory at a time, measured."""
SLICE_BYTES = 256 << 20
"""Memory of a search of ranges, and of packing, slice by slice, measured."""
SCORES = 6
"""Copies of the scores of a batch while the loss and its gradient are computed, measured."""
SAVED = 3
"""Values saved for the gradient of a layer, relative to the outputs of its matrices."""
ROTATIONS = 4
"""Matrices (hidden, hidden) in double precision while a layer is rotated: the rotation and its
construction; and the identity matrices around the layer, before and after, in single precision."""
ROTATED_BYTES = 24
"""Bytes of an element of a matrix while it is rotated, in double precision."""


@dataclass(frozen=True)
class DataSize:
    """Size of calibration data: tokens in all batches, and tokens and rows of the largest batch."""

    tokens: int
    largest: int
    rows: int = 1

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> DataSize:
        """Return the size of batches whose rows are tokens."""
        counts = [max(t.numel() for t in _tensors(batch)) for batch in batches]
        rows = max(len(t) for batch in batches for t in _tensors(batch))
        return cls(sum(counts), max(counts), rows)


def _tensors(batch: Mapping[str, Any]) -> list[Tensor]:
    return [value for value in batch.values() if isinstance(value, Tensor)]


@dataclass(frozen=True)
class MemoryPrediction:
    """Predicted memory in bytes, by part; `peak` is the largest phase."""

    resident: int
    layers: int
    activations: int
    solver: int
    gradients: int
    rotation: int = 0

    @property
    def peak(self) -> int:
        """Peak of the process."""
        calibration = self.layers + self.activations + self.solver
        return self.resident + max(calibration, self.gradients, self.rotation)

    def __str__(self) -> str:
        parts = {
            "process": self.resident,
            "decoder layers": self.layers,
            "activations": self.activations,
            "solver": self.solver,
        }
        listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
        others = f"gradients {self.gradients / GIB:.2f}"
        if self.rotation:
            others += f"; rotation {self.rotation / GIB:.2f}"
        return f"{self.peak / GIB:.2f} GiB ({listed}; {others})"


def predict(plan: StreamPlan, resident: int) -> MemoryPrediction:
    """Return the predicted peak of a process that has `resident` bytes now."""
    return _predict(plan.request, plan.stream, DataSize.of(plan.batches), resident)


def _predict(
    request: StreamRequest, stream: DecoderStream, data: DataSize, resident: int
) -> MemoryPrediction:
    layer = max(range(len(stream.layers)), key=stream.layer_bytes)
    shapes = [m.weight.shape for m in stream.layers[layer].modules() if isinstance(m, nn.Linear)]
    shapes += stream.expert_shapes(layer)
    return MemoryPrediction(
        resident,
        _layers(request, shapes) * stream.layer_bytes(layer),
        _activations(request, stream, data, shapes),
        max((_solver(request, *shape) for shape in shapes), default=0),
        _backward(request, stream, data, shapes),
        _rotation(stream, layer, shapes) if ROTATE in request.methods else 0,
    )


def _rounds_whole(request: StreamRequest) -> bool:
    """Return True if all rows of a weight share a scale, so that it is not rounded in slices."""
    form = parse_format(request.format, "format")
    scaled, blocks = form.scaled, form.blocks
    has_one_scale = scaled is not None and scaled.granularity == "tensor"
    return has_one_scale or (blocks is not None and blocks.tile[0] == -1)


def _layers(request: StreamRequest, shapes: Sequence[torch.Size]) -> int:
    """Return how many layers are in memory: the float weights next to the rounded ones, or not.

    With the sums in files, a float weight is dropped when the reference has passed its layer.
    """
    is_stored = [are_stored(*shape, before=request.needs_reference) for shape in shapes]
    return 1 if "gptq" in request.methods and all(is_stored) else 2


def _activations(
    request: StreamRequest, stream: DecoderStream, data: DataSize, shapes: Sequence[torch.Size]
) -> int:
    """Return the memory of the values at the widest place of a layer, and of one batch's work."""
    config = stream.model.config.get_text_config()
    hidden: int = config.hidden_size
    widest = max(max(shape) for shape in shapes)
    runs = 1 + (request.reference is not None) if NOW in request.streams else 1
    values = 3 * hidden + widest  # the input, the residual, its norm, and a product
    experts = stream.expert_shapes(0)
    if experts:  # each token is copied for its experts, and their results are joined
        routed = int(getattr(config, "num_experts_per_tok", 1))
        values += routed * (hidden + 2 * max(max(shape) for shape in experts))
    tokens = data.largest if request.spill is not None else data.tokens
    work = data.largest * 3 * widest
    return FLOAT_BYTES * (runs * tokens * values + work)


def _solver(request: StreamRequest, rows: int, columns: int) -> int:
    if "gptq" not in request.methods:
        return SLICE_BYTES + 3 * DOUBLE_BYTES * rows * columns
    is_float = request.needs_reference
    if are_stored(rows, columns, before=is_float):
        weights = FLOAT_BYTES * STORED_WEIGHTS * rows * columns
        if _rounds_whole(request):
            weights += DOUBLE_BYTES * WEIGHTS * rows * columns
        return weights + STORED_PANELS * PANEL_BYTES + SLICE_BYTES
    sums = 2 * SUMS[is_float] * columns**2
    solve = (SUMS[is_float] + SOLVER_SQUARES[is_float]) * columns**2
    return DOUBLE_BYTES * max(sums, solve + WEIGHTS * rows * columns) + SLICE_BYTES


def _backward(
    request: StreamRequest, stream: DecoderStream, data: DataSize, shapes: Sequence[torch.Size]
) -> int:
    """Return the memory of forward and backward runs over one batch, if a method needs them.

    The importance of rows has one gradient. The losses of formats have several, and look at a part
    of each matrix for all samples and in all formats.
    """
    one = 0
    if request.weighs_rows:
        one = _gradients(request, stream, data, shapes, 1)
    if request.allocation is None:
        return one
    tried = (data.rows + len(request.allocation.formats)) * PART
    several = _gradients(request, stream, data, shapes, DRAWS) + FLOAT_BYTES * tried
    return max(one, several)


def _gradients(
    request: StreamRequest,
    stream: DecoderStream,
    data: DataSize,
    shapes: Sequence[torch.Size],
    count: int,
) -> int:
    """Return the memory of a run forward, and of one backward from each of `count` gradients."""
    config = stream.model.config.get_text_config()
    boundaries = 1 if request.spill is not None else len(stream.layers)
    hidden: int = config.hidden_size
    vocabulary: int = config.vocab_size
    inputs = data.largest * hidden * (boundaries + 1 + count)
    head = vocabulary * (hidden + SCORES * data.largest)
    saved = SAVED * data.largest * sum(shape[0] for shape in shapes)
    layer = stream.layer_bytes(0) // FLOAT_BYTES + saved
    return FLOAT_BYTES * (inputs + max(head, layer))


def _rotation(stream: DecoderStream, layer: int, shapes: Sequence[torch.Size]) -> int:
    """Return the memory of the rotation of a layer, or of the words' table with the mapped one."""
    config = stream.model.config.get_text_config()
    hidden: int = config.hidden_size
    matrix = ROTATIONS * DOUBLE_BYTES * hidden**2
    work = ROTATED_BYTES * max(shape.numel() for shape in shapes)
    words = stream.parts(f"{surroundings(stream).words}.weight")[0].name
    table = 2 * stream.stored[words].nbytes + ROTATED_BYTES * ROWS_AT_ONCE * hidden
    return matrix + max(2 * stream.layer_bytes(layer) + work, table)


Size = tuple[StreamRequest, DataSize]
Change = tuple[str, Callable[[StreamRequest, DataSize], Size]]
"""Setting that lowers the memory, as the user writes it, and its effect."""


def _gptq_change(name: str, value: str) -> Change:
    """Return the change of one setting of GPTQ."""

    def apply(request: StreamRequest, data: DataSize) -> Size:
        own = {**request.options.get("gptq", {}), name: value}
        return replace(request, options={**request.options, "gptq": own}), data

    return f"--set options.gptq.{name}={value}", apply


def check_memory(plan: StreamPlan, resident: int, limit: float, batch_rows: int) -> None:
    """Raise ConfigError if the run needs more than `limit` bytes, with the nearest that fits."""
    predicted = predict(plan, resident)
    if predicted.peak <= limit:
        return
    raise ConfigError(
        f"max_memory: {limit / GIB:.2f} GiB, and the run needs {predicted}. "
        f"{_advice(plan, resident, limit, batch_rows)}"
    )


def _advice(plan: StreamPlan, resident: int, limit: float, batch_rows: int) -> str:
    """Return the first settings, each added to those before, with which the run fits."""
    request, data = plan.request, DataSize.of(plan.batches)
    words: list[str] = []
    least = predict(plan, resident).peak
    for word, change in _changes(plan.request, data, batch_rows):
        request, data = change(request, data)
        peak = _predict(request, plan.stream, data, resident).peak
        if peak >= least:
            continue
        words, least = [*words, word], peak
        if peak <= limit:
            return f"It fits in {peak / GIB:.2f} GiB with {' '.join(words)}."
    fewest = " ".join(words) or "the settings given"
    return f"No setting fits; the least is {least / GIB:.2f} GiB, with {fewest}."


def _changes(request: StreamRequest, data: DataSize, batch_rows: int) -> list[Change]:
    one = DataSize(data.tokens, -(-data.largest // batch_rows), 1)
    changes: list[Change] = [
        ("--spill FOLDER", lambda r, d: (replace(r, spill=r.source), d)),
        ("--eval-batch-size 1", lambda r, d: (r, replace(d, largest=one.largest, rows=1))),
    ]
    if "gptq" in request.methods:
        changes += [_gptq_change("rows", "equal"), _gptq_change("target", "rounded")]
    nearest: Change = ("--method nearest", lambda r, d: (replace(r, methods=("nearest",)), d))
    return [*changes, nearest]
