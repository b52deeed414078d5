"""The op table: what MASE knows about each operator, one row each.

To add an op, add one `Op(...)` row to the group it belongs to. Torch targets are matched by
identity; an op that exists both as module and as function is one row. Nothing else in the
project may switch on an op's name: give the table a column instead.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from chop.errors import GraphError
from chop.ir.dims import DIMS, check_rule
from chop.ir.kernels import COMPUTE, Compute
from chop.ir.modes import ModeConstant, RandomDraw
from chop.registry import Registry

MODULE = "module"
MODULE_RELATED_FUNC = "module_related_func"
BUILTIN_FUNC = "builtin_func"
IMPLICIT_FUNC = "implicit_func"
PLACEHOLDER = "placeholder"
GET_ATTR = "get_attr"
OUTPUT = "output"
MASE_TYPES = (
    MODULE,
    MODULE_RELATED_FUNC,
    BUILTIN_FUNC,
    IMPLICIT_FUNC,
    PLACEHOLDER,
    GET_ATTR,
    OUTPUT,
)
"""The seven types of the IR."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Shapes:
    """The shapes an op works on, as its cost rule sees them."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    parameters: Mapping[str, Shape] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def output_elements(self) -> int:
        """Elements over all outputs."""
        return sum(math.prod(s) for s in self.outputs)


ModuleClass = type[nn.Module]
MacsRule = Callable[[Shapes], int]


@dataclass(frozen=True)
class Op:
    """One operator: its names in torch, its operands, what it costs, what it may do besides.

    `is_random`: two calls on equal operands may differ. `is_stateful`: a call in training mode
    writes buffers. `is_view`: the result may share the storage of an operand. `is_dropout`: gives
    its operand back in evaluation mode. `copies_if_strided`: a view, but of a contiguous operand
    alone. `reads_rows`: of its parameters it reads the rows it gives.
    `dims`: the rule by which it carries dimensions (`chop.ir.dims`).
    """

    name: str
    type: str
    modules: tuple[ModuleClass, ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    methods: tuple[str, ...] = ()
    module_names: tuple[str, ...] = ()
    """Endings of class names, for a layer that every library copies instead of importing."""
    parameters: tuple[str, ...] = ()
    macs: MacsRule | None = None
    flops_per_output: float = 0.0
    is_random: bool = False
    is_stateful: bool = False
    is_view: bool = False
    is_dropout: bool = False
    copies_if_strided: bool = False
    reads_rows: bool = False
    compute: Compute | None = None
    dims: str | None = None
    rtl: str = ""
    """How hardware realises it: a component of `chop.hw`, or wiring; empty: not at all."""

    def __post_init__(self) -> None:
        check_rule(self.dims, f"op '{self.name}'")

    def flops(self, shapes: Shapes) -> int:
        """Floating-point operations: two for each multiply-accumulate, plus the elementwise."""
        return 2 * self.macs_of(shapes) + int(self.flops_per_output * shapes.output_elements)

    def macs_of(self, shapes: Shapes) -> int:
        """Multiply-accumulates of one call; 0 where the op has none."""
        return self.macs(shapes) if self.macs else 0


def _contract_weight(s: Shapes) -> int:
    """Every output element is a dot product with one row of the weight."""
    weight = s.parameters["weight"] if "weight" in s.parameters else s.inputs[1]
    return s.output_elements * math.prod(weight[1:])


def _transposed_conv_macs(s: Shapes) -> int:
    weight = s.parameters["weight"] if "weight" in s.parameters else s.inputs[1]
    return math.prod(s.inputs[0]) * math.prod(weight[1:])


def _matmul_macs(s: Shapes) -> int:
    return s.output_elements * s.inputs[0][-1]


def _addmm_macs(s: Shapes) -> int:
    return s.output_elements * s.inputs[1][-1]


def _attention_macs(s: Shapes) -> int:
    query, key, value = s.inputs[:3]
    scores = math.prod(query[:-1]) * key[-2]
    return scores * (query[-1] + value[-1])


def _multihead_macs(s: Shapes) -> int:
    """Three input projections, scores, weighted sum, output projection."""
    query, key = s.inputs[0], s.inputs[1] if len(s.inputs) > 1 else s.inputs[0]
    embed = query[-1]
    tokens, keys = math.prod(query[:-1]), math.prod(key[:-1])
    sequence_first = len(key) == 3 and not s.config.get("batch_first", False)
    keys_seen = key[0] if sequence_first else key[-2]
    return embed * embed * (2 * tokens + 2 * keys) + 2 * tokens * keys_seen * embed


def _einsum_macs(s: Shapes) -> int:
    """One multiply-accumulate for every combination of the index letters of the equation."""
    letters = str(s.config.get("equation", "")).replace(" ", "").split("->")[0].split(",")
    if "." in "".join(letters) or [len(t) for t in letters] != [len(i) for i in s.inputs]:
        return 0
    sizes = {
        c: n
        for term, shape in zip(letters, s.inputs, strict=True)
        for c, n in zip(term, shape, strict=True)
    }
    return math.prod(sizes.values()) if len(s.inputs) > 1 else 0


def _recurrent_macs(s: Shapes) -> int:
    steps = math.prod(s.inputs[0][:-1])
    return steps * sum(math.prod(p) for n, p in s.parameters.items() if n.startswith("weight"))


def _functions(*names: str, of: Any = torch) -> tuple[Callable[..., Any], ...]:
    return tuple(getattr(of, n) for n in names if hasattr(of, n))


def _layer(name: str, module: str, functions: str = "", **columns: Any) -> Op:
    """A row for a module with a functional twin; names are looked up in torch."""
    modules = tuple(getattr(nn, m) for m in module.split() if hasattr(nn, m))
    found = [f for n in functions.split() for f in _functions(n, of=F) + _functions(n)]
    return Op(
        name,
        columns.pop("type", MODULE_RELATED_FUNC),
        modules=modules,
        functions=tuple(dict.fromkeys(found)),
        methods=tuple(n for n in functions.split() if hasattr(torch.Tensor, n)),
        **columns,
    )


def _tensor_op(name: str, names: str = "", type: str = BUILTIN_FUNC, **columns: Any) -> Op:
    """A row for a tensor operation: torch functions, operators and methods of these names."""
    names = names or name
    found: list[Callable[..., Any]] = []
    for each in names.split():
        for place in (torch, operator, torch.special, torch.linalg, torch.fft):
            found += _functions(each, of=place)
    methods = tuple(n for n in names.split() if hasattr(torch.Tensor, n))
    functions = tuple(dict.fromkeys(found)) + columns.pop("functions", ())
    return Op(name, type, functions=functions, methods=methods, **columns)


WEIGHT_BIAS = ("weight", "bias")

LAYERS = (
    _layer("linear", "Linear", "linear", parameters=WEIGHT_BIAS, macs=_contract_weight),
    _layer("bilinear", "Bilinear", "bilinear", parameters=WEIGHT_BIAS, macs=_contract_weight),
    _layer("conv1d", "Conv1d", "conv1d", parameters=WEIGHT_BIAS, macs=_contract_weight),
    _layer("conv2d", "Conv2d", "conv2d", parameters=WEIGHT_BIAS, macs=_contract_weight),
    _layer("conv3d", "Conv3d", "conv3d", parameters=WEIGHT_BIAS, macs=_contract_weight),
    *(
        _layer(
            f"conv_transpose{n}d",
            f"ConvTranspose{n}d",
            f"conv_transpose{n}d",
            parameters=WEIGHT_BIAS,
            macs=_transposed_conv_macs,
        )
        for n in (1, 2, 3)
    ),
    _layer("embedding", "Embedding", "embedding", parameters=("weight",), reads_rows=True),
    _layer(
        "embedding_bag", "EmbeddingBag", "embedding_bag", parameters=("weight",), reads_rows=True
    ),
    _layer("layer_norm", "LayerNorm", "layer_norm", parameters=WEIGHT_BIAS, flops_per_output=8),
    _layer("rms_norm", "RMSNorm", "rms_norm", parameters=("weight",), flops_per_output=5),
    _layer("group_norm", "GroupNorm", "group_norm", parameters=WEIGHT_BIAS, flops_per_output=8),
    *(
        _layer(
            f"batch_norm{n}d",
            f"BatchNorm{n}d",
            type=MODULE,
            parameters=WEIGHT_BIAS,
            flops_per_output=4,
            is_stateful=True,
        )
        for n in (1, 2, 3)
    ),
    _layer(
        "batch_norm",
        "SyncBatchNorm",
        "batch_norm",
        type=MODULE,
        parameters=WEIGHT_BIAS,
        flops_per_output=4,
        is_stateful=True,
    ),
    _layer(
        "instance_norm",
        "InstanceNorm1d InstanceNorm2d InstanceNorm3d",
        "instance_norm",
        parameters=WEIGHT_BIAS,
        flops_per_output=8,
        is_stateful=True,
    ),
    _layer("local_response_norm", "LocalResponseNorm", "local_response_norm", flops_per_output=8),
    _layer("lstm", "LSTM", type=MODULE, macs=_recurrent_macs, is_random=True),
    _layer("gru", "GRU", type=MODULE, macs=_recurrent_macs, is_random=True),
    _layer("rnn", "RNN", type=MODULE, macs=_recurrent_macs, is_random=True),
    _layer("lstm_cell", "LSTMCell", type=MODULE, macs=_recurrent_macs),
    _layer("gru_cell", "GRUCell", type=MODULE, macs=_recurrent_macs),
    _layer(
        "multihead_attention",
        "MultiheadAttention",
        "multi_head_attention_forward",
        type=MODULE,
        macs=_multihead_macs,
        is_random=True,
    ),
    _layer("identity", "Identity", type=MODULE, is_view=True),
    Op("activation_mask", MODULE, flops_per_output=1),
)

ACTIVATIONS = (
    _layer("relu", "ReLU", "relu relu_", flops_per_output=1),
    _layer("relu6", "ReLU6", "relu6", flops_per_output=2),
    _layer("leaky_relu", "LeakyReLU", "leaky_relu leaky_relu_", flops_per_output=2),
    _layer("prelu", "PReLU", "prelu", parameters=("weight",), flops_per_output=2),
    _layer("rrelu", "RReLU", "rrelu rrelu_", flops_per_output=2, is_random=True),
    _layer("elu", "ELU", "elu elu_", flops_per_output=4),
    _layer("celu", "CELU", "celu celu_", flops_per_output=4),
    _layer("selu", "SELU", "selu selu_", flops_per_output=5),
    _layer("gelu", "GELU", "gelu", flops_per_output=8),
    _layer("silu", "SiLU", "silu", flops_per_output=5),
    _layer("mish", "Mish", "mish", flops_per_output=7),
    _layer("tanh", "Tanh", "tanh tanh_", flops_per_output=5),
    _layer("sigmoid", "Sigmoid", "sigmoid sigmoid_", flops_per_output=4),
    _layer("logsigmoid", "LogSigmoid", "logsigmoid", flops_per_output=5),
    _layer("softplus", "Softplus", "softplus", flops_per_output=4),
    _layer("softsign", "Softsign", "softsign", flops_per_output=3),
    _layer("hardtanh", "Hardtanh", "hardtanh hardtanh_", flops_per_output=2),
    _layer("hardswish", "Hardswish", "hardswish", flops_per_output=5),
    _layer("hardsigmoid", "Hardsigmoid", "hardsigmoid", flops_per_output=4),
    _layer("hardshrink", "Hardshrink", "hardshrink", flops_per_output=2),
    _layer("softshrink", "Softshrink", "softshrink", flops_per_output=2),
    _layer("tanhshrink", "Tanhshrink", "tanhshrink", flops_per_output=6),
    _layer("threshold", "Threshold", "threshold threshold_", flops_per_output=1),
    _layer("softmax", "Softmax Softmax2d", "softmax", flops_per_output=5),
    _layer("softmin", "Softmin", "softmin", flops_per_output=6),
    _layer("log_softmax", "LogSoftmax", "log_softmax", flops_per_output=6),
    _layer("gumbel_softmax", "", "gumbel_softmax", flops_per_output=8, is_random=True),
    _layer("glu", "GLU", "glu", flops_per_output=5),
    _layer("normalize", "", "normalize", flops_per_output=3),
)

DROPOUTS = tuple(
    _layer(name, module, functions, is_random=True, is_dropout=True, is_view=True)
    for name, module, functions in (
        ("dropout", "Dropout", "dropout dropout_"),
        ("dropout1d", "Dropout1d", "dropout1d"),
        ("dropout2d", "Dropout2d", "dropout2d"),
        ("dropout3d", "Dropout3d", "dropout3d"),
        ("alpha_dropout", "AlphaDropout", "alpha_dropout alpha_dropout_"),
        ("feature_alpha_dropout", "FeatureAlphaDropout", "feature_alpha_dropout"),
    )
)

DROP_PATHS = (
    Op(
        "drop_path",
        MODULE,
        module_names=("DropPath", "StochasticDepth"),
        is_random=True,
        is_dropout=True,
        is_view=True,
    ),
)

FUSED = (
    Op(
        "linear_activation",
        MODULE,
        module_names=("LinearActivation",),
        parameters=WEIGHT_BIAS,
        macs=_contract_weight,
        flops_per_output=4,
    ),
    Op(
        "add_layer_norm",
        MODULE,
        module_names=("AddLayerNorm",),
        parameters=WEIGHT_BIAS,
        flops_per_output=9,
    ),
)

PACKED = (
    Op("packed_linear", MODULE, module_names=("QLinearPacked", "QLinearInt8"), macs=_matmul_macs),
    Op("packed_embedding", MODULE, module_names=("QEmbeddingPacked",), reads_rows=True),
)

POOLS = tuple(
    _layer(f"{kind}_pool{n}d", f"{camel}Pool{n}d", f"{kind}_pool{n}d", flops_per_output=cost)
    for kind, camel, cost in (
        ("max", "Max", 4),
        ("avg", "Avg", 4),
        ("adaptive_avg", "AdaptiveAvg", 4),
        ("adaptive_max", "AdaptiveMax", 4),
        ("lp", "LP", 6),
    )
    for n in (1, 2, 3)
)

IMAGE_LAYERS = (
    _layer(
        "interpolate", "Upsample UpsamplingNearest2d UpsamplingBilinear2d", "interpolate upsample"
    ),
    _layer("grid_sample", "", "grid_sample"),
    _layer("affine_grid", "", "affine_grid"),
    _layer("unfold", "Unfold", "unfold"),
    _layer("fold", "Fold", "fold"),
    _layer("pixel_shuffle", "PixelShuffle", "pixel_shuffle"),
    _layer("pixel_unshuffle", "PixelUnshuffle", "pixel_unshuffle"),
    _layer("channel_shuffle", "ChannelShuffle", "channel_shuffle"),
    _layer(
        "pad",
        "ZeroPad1d ZeroPad2d ZeroPad3d ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d "
        "ReflectionPad2d ReplicationPad1d ReplicationPad2d CircularPad1d CircularPad2d",
        "pad",
    ),
    _layer("cosine_similarity", "CosineSimilarity", "cosine_similarity", flops_per_output=6),
    _layer("pairwise_distance", "PairwiseDistance", "pairwise_distance cdist"),
    _layer(
        "scaled_dot_product_attention",
        "",
        "scaled_dot_product_attention",
        type=BUILTIN_FUNC,
        macs=_attention_macs,
        is_random=True,
    ),
    _layer("one_hot", "", "one_hot", type=BUILTIN_FUNC),
)

LOSSES = tuple(
    _layer(name, module, functions, flops_per_output=1)
    for name, module, functions in (
        ("cross_entropy", "CrossEntropyLoss", "cross_entropy"),
        ("nll_loss", "NLLLoss NLLLoss2d", "nll_loss"),
        ("mse_loss", "MSELoss", "mse_loss"),
        ("l1_loss", "L1Loss", "l1_loss"),
        ("smooth_l1_loss", "SmoothL1Loss", "smooth_l1_loss"),
        ("huber_loss", "HuberLoss", "huber_loss"),
        (
            "binary_cross_entropy_with_logits",
            "BCEWithLogitsLoss",
            "binary_cross_entropy_with_logits",
        ),
        ("binary_cross_entropy", "BCELoss", "binary_cross_entropy"),
        ("kl_div", "KLDivLoss", "kl_div"),
        ("ctc_loss", "CTCLoss", "ctc_loss"),
        ("cosine_embedding_loss", "CosineEmbeddingLoss", "cosine_embedding_loss"),
    )
)

MATRIX_OPS = (
    _tensor_op("matmul", "matmul mm mv", macs=_matmul_macs),
    _tensor_op("bmm", macs=_matmul_macs),
    _tensor_op(
        "grouped_mm",
        "_grouped_mm",
        macs=_matmul_macs,
        functions=_functions("grouped_mm", of=F),
    ),
    _tensor_op("addmm", "addmm baddbmm addbmm addmv", macs=_addmm_macs),
    _tensor_op("einsum", macs=_einsum_macs),
    _tensor_op("dot", "dot vdot inner outer tensordot"),
    _tensor_op("norm", "norm vector_norm matrix_norm", flops_per_output=2),
    _tensor_op("cumsum", "cumsum cumprod cummax cummin logcumsumexp", flops_per_output=1),
    _tensor_op("diff", flops_per_output=1),
    _tensor_op("fft", "fft ifft fft2 ifft2 fftn ifftn rfft irfft rfftn irfftn"),
)

_ARITHMETIC = {
    "add": "add iadd add_",
    "sub": "sub subtract isub sub_ rsub",
    "mul": "mul multiply imul mul_",
    "div": "div divide truediv true_divide itruediv div_",
    "floor_divide": "floordiv floor_divide ifloordiv",
    "remainder": "remainder mod fmod",
    "pow": "pow pow_ float_power square",
    "neg": "neg negative",
    "abs": "abs absolute",
    "exp": "exp exp_ exp2 expm1",
    "log": "log log_ log2 log10 log1p",
    "sqrt": "sqrt sqrt_",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal",
    "sin": "sin asin sinh",
    "cos": "cos acos cosh",
    "tan": "tan atan atan2",
    "erf": "erf erfc erfinv",
    "sign": "sign sgn",
    "round": "round floor ceil trunc frac",
    "clamp": "clamp clamp_ clip clamp_min clamp_max",
    "maximum": "maximum fmax",
    "minimum": "minimum fmin",
    "addcmul": "addcmul addcdiv addcmul_ addcdiv_",
    "lerp": "lerp",
    "compare": "eq ne lt le gt ge isclose isin",
    "logical": "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not "
    "bitwise_xor and_ or_ xor not_ invert lshift rshift",
    "isnan": "isnan isinf isfinite nan_to_num",
    "where": "where",
    "masked_fill": "masked_fill masked_fill_",
    "sum": "sum nansum",
    "prod": "prod",
    "mean": "mean nanmean",
    "var": "var var_mean",
    "std": "std std_mean",
    "max": "max amax",
    "min": "min amin",
    "argmax": "argmax argmin",
    "logsumexp": "logsumexp",
    "all": "all any",
}

ARITHMETIC = tuple(
    _tensor_op(name, names, flops_per_output=1) for name, names in _ARITHMETIC.items()
)

_DATA_MOVEMENT = {
    "cat": "cat concat concatenate",
    "stack": "stack hstack vstack dstack",
    "gather": "gather take_along_dim",
    "scatter": "scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_",
    "index_select": "index_select",
    "index_add": "index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_put "
    "index_put_",
    "masked_select": "masked_select masked_scatter masked_scatter_",
    "topk": "topk sort argsort kthvalue",
    "roll": "roll",
    "flip": "flip fliplr flipud rot90",
    "repeat_interleave": "repeat_interleave",
    "tril": "tril triu tril_ triu_",
    "bucketize": "bucketize searchsorted histc bincount unique",
    "meshgrid": "meshgrid cartesian_prod",
    "nonzero": "nonzero count_nonzero",
    "as_strided": "as_strided",
}

DATA_MOVEMENT = tuple(_tensor_op(name, names) for name, names in _DATA_MOVEMENT.items())

_IMPLICIT = {
    "flatten": "flatten ravel",
    "unflatten": "unflatten",
    "view": "view view_as",
    "reshape": "reshape reshape_as",
    "permute": "permute",
    "transpose": "transpose swapaxes swapdims movedim moveaxis t adjoint",
    "contiguous": "contiguous",
    "squeeze": "squeeze squeeze_",
    "unsqueeze": "unsqueeze unsqueeze_",
    "expand": "expand expand_as broadcast_to broadcast_tensors",
    "repeat": "repeat tile",
    "chunk": "chunk tensor_split",
    "split": "split split_with_sizes unsafe_split",
    "unbind": "unbind",
    "narrow": "narrow select diagonal diag diag_embed slice_scatter select_scatter",
    "size": "size numel dim ndimension stride storage_offset nelement element_size",
    "getitem": "getitem",
    "setitem": "setitem",
    "to": "to type float half bfloat16 double int long short bool cpu cuda type_as clone detach "
    "detach_ requires_grad_ item tolist numpy copy_ data_ptr is_floating_point is_complex "
    "view_as_real view_as_complex real imag complex polar as_tensor tensor from_numpy asarray",
    "new": "new_zeros new_ones new_full new_empty new_tensor",
    "fill": "fill_ zero_ fill",
    "constant": "zeros ones full empty zeros_like ones_like full_like empty_like arange linspace "
    "eye scalar_tensor hann_window hamming_window",
    "random": "rand randn randint randperm rand_like randn_like randint_like bernoulli "
    "bernoulli_ normal normal_ uniform_ multinomial random_ exponential_",
    "index": "index",
    "finfo": "finfo iinfo",
}

_MAY_COPY = ("contiguous", "flatten", "reshape")
_NOT_VIEWS = ("repeat", "size", "setitem", "new", "constant", "random", "index", "finfo")

IMPLICIT = (
    *(
        _tensor_op(
            name,
            names,
            type=IMPLICIT_FUNC,
            is_view=name not in _NOT_VIEWS,
            is_random=name == "random",
            copies_if_strided=name in _MAY_COPY,
        )
        for name, names in _IMPLICIT.items()
    ),
    # What Python computes of sizes.
    Op(
        "size_arithmetic",
        IMPLICIT_FUNC,
        functions=(max, min, round, math.ceil, math.floor, math.trunc),
    ),
    Op("getattr", IMPLICIT_FUNC, functions=(getattr,)),
    # Not random within a mode, but not a constant either: training has another value.
    Op("mode_constant", IMPLICIT_FUNC, modules=(ModeConstant,), is_random=True),
    Op("random_draw", IMPLICIT_FUNC, modules=(RandomDraw,), is_random=True),
)

MODULE_SHAPES = {"flatten": (nn.Flatten,), "unflatten": (nn.Unflatten,)}
"""Modules whose op is one of the implicit functions."""

RTL = {
    "fixed_linear": "linear",
    "fixed_conv1d": "conv1d",
    "fixed_conv2d": "conv2d",
    "fixed_batch_norm": "batch_norm1d batch_norm2d",
    "fixed_max_pool": "max_pool2d",
    "fixed_avg_pool": "avg_pool2d",
    "global_avg_pool": "adaptive_avg_pool2d",
    "fixed_relu": "relu",
    "fixed_leaky_relu": "leaky_relu",
    "fixed_hardsigmoid": "hardsigmoid",
    "fixed_hardswish": "hardswish",
    "fixed_lut": "sigmoid tanh gelu silu elu mish softplus softsign",
    "fixed_add": "add",
    "fixed_sub": "sub",
    "fixed_mul": "mul",
    "wire": "identity dropout dropout1d dropout2d contiguous",
    "wire_view": "flatten view reshape squeeze unsqueeze unflatten",
    "wire_permute": "permute transpose",
    "wire_size": "size getitem",
}
"""The column `rtl`: the ops that each component, or kind of wiring, of `chop.hw` realises."""
_RTL_OF = {op: rtl for rtl, ops in RTL.items() for op in ops.split()}


def _merge(rows: Iterable[Op]) -> Registry[Op]:
    table: Registry[Op] = Registry("op")
    for row in rows:
        whole = replace(
            row,
            modules=row.modules + MODULE_SHAPES.get(row.name, ()),
            compute=COMPUTE.get(row.name),
            dims=DIMS.get(row.name),
            rtl=_RTL_OF.get(row.name, ""),
        )
        table.register(row.name, whole)
    return table


OPS: Registry[Op] = _merge(
    (
        *LAYERS,
        *ACTIVATIONS,
        *DROPOUTS,
        *DROP_PATHS,
        *FUSED,
        *PACKED,
        *POOLS,
        *IMAGE_LAYERS,
        *LOSSES,
        *MATRIX_OPS,
        *ARITHMETIC,
        *DATA_MOVEMENT,
        *IMPLICIT,
        Op("placeholder", PLACEHOLDER),
        Op("get_attr", GET_ATTR),
        Op("output", OUTPUT),
    )
)

_BY_MODULE = {m: op for op in OPS.values() for m in op.modules}
_BY_MODULE_NAME = {ending: op for op in OPS.values() for ending in op.module_names}
_BY_FUNCTION: dict[Callable[..., Any], Op] = {}
_BY_METHOD: dict[str, Op] = {}
for _op in OPS.values():
    for _function in _op.functions:
        _BY_FUNCTION.setdefault(_function, _op)
    for _method in _op.methods:
        _BY_METHOD.setdefault(_method, _op)

UNKNOWN = Op("unknown", IMPLICIT_FUNC)


def op_of_module(module: nn.Module) -> Op | None:
    """The row of a module, or of the nearest of its base classes, or the `op` it names itself."""
    for cls in type(module).__mro__:
        if cls in _BY_MODULE:
            return _BY_MODULE[cls]
    own = getattr(type(module), "op", None)
    if isinstance(own, Op):
        return own
    name = type(module).__name__
    return next((op for ending, op in _BY_MODULE_NAME.items() if name.endswith(ending)), None)


def op_of_function(target: Any) -> Op | None:
    """The row of a torch function or Python operator, or of a quantised version of one."""
    try:
        found = _BY_FUNCTION.get(target)
    except TypeError:  # an unhashable callable
        return None
    own = getattr(target, "op", None)
    return own if found is None and isinstance(own, Op) else found


def op_of_method(name: str) -> Op | None:
    """The row of a tensor method."""
    return _BY_METHOD.get(name)


def find_op(node: fx.Node, custom_ops: Mapping[str, Any] | None = None) -> Op | None:
    """The row of `node`; None for an op the table does not list."""
    if node.op in (PLACEHOLDER, GET_ATTR, OUTPUT):
        return OPS[node.op]
    if node.op == "call_method":
        return op_of_method(str(node.target))
    if node.op == "call_function":
        return _custom(node.target, custom_ops, "functions") or op_of_function(node.target)
    module = node_module(node)
    return _custom(type(module), custom_ops, "modules") or op_of_module(module)


def _custom(target: Any, custom_ops: Mapping[str, Any] | None, kind: str) -> Op | None:
    """The user's own op: `custom_ops={"modules": {MyLayer: {...}}}`."""
    listed = (custom_ops or {}).get(kind, {})
    if target not in listed:
        return None
    row = listed[target]
    if isinstance(row, Op):
        return row
    name = (row or {}).get("mase_op") or getattr(target, "__name__", "custom").lower()
    kind_type = MODULE if kind == "modules" else IMPLICIT_FUNC
    return Op(name, (row or {}).get("mase_type", kind_type))


def node_module(node: fx.Node) -> nn.Module:
    """The live module a `call_module` node calls."""
    owner = node.graph.owning_module
    if owner is None:
        raise GraphError(f"node '{node.name}': its graph belongs to no module.")
    return owner.get_submodule(str(node.target))
