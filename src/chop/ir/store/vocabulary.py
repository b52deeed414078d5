"""Allow-lists of the names that a file may contain: functions, methods, attributes and classes.

A name that is not listed is rejected before anything is looked up, imported or written into
generated source. Functions are those of the op table and of the lists below. To add one, make sure
that it accepts no callable, no file and no raw memory.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import keyword
import math
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.node import _get_qualified_name
from torch.nn.utils import parametrizations, parametrize

from chop.compat.old_modules import current_path
from chop.ir import modes
from chop.ir.applied_function import AppliedFunction
from chop.ir.ops import FUNCTION_OPS, METHOD_OPS, Op, op_of_module

LONGEST_NAME = 400
"""Characters of a name; a path may have four times as many."""


def _words(text: str) -> list[str]:
    return text.split()


_INTERNAL = frozenset(vars(nn.Module()))
_RESERVED_PATHS = frozenset(dir(fx.GraphModule)) | _INTERNAL
_SOURCE_NAMES = frozenset(
    _words("self torch device inf nan NoneType fx_pytree pytree getattr slice range dict")
)
"""Names that generated source uses: an input with such a name would hide them."""
_PATH_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*", re.ASCII)


def is_identifier(name: Any) -> bool:
    """Return True if `name` is a plain name: no keyword, no dunder, in normal Unicode form."""
    return (
        isinstance(name, str)
        and len(name) <= LONGEST_NAME
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and not name.startswith("__")
        and unicodedata.normalize("NFKC", name) == name
    )


def is_input_name(name: Any) -> bool:
    """Return True if an input of a graph may have this name."""
    return is_identifier(name) and name not in _SOURCE_NAMES


def is_module_path(path: Any) -> bool:
    """Return True if `path` is names and numbers separated by dots, none reserved by torch."""
    if not isinstance(path, str) or len(path) > 4 * LONGEST_NAME:
        return False
    return all(is_path_part(part) for part in path.split("."))


def is_path_part(part: Any) -> bool:
    """Return True if a module may have a child, parameter or buffer of this name."""
    if not isinstance(part, str) or part in _RESERVED_PATHS or part.startswith("__"):
        return False
    is_plain = len(part) <= LONGEST_NAME and _PATH_PART.fullmatch(part) is not None
    return is_plain or is_identifier(part)


def is_attribute(name: Any, cls: type) -> bool:
    """Return True if a file may set the attribute `name`: data, not a member of `cls`."""
    if not is_identifier(name) or name in _INTERNAL or hasattr(nn.Module, name):
        return False
    member = inspect.getattr_static(cls, name, None)
    return not callable(member) and not hasattr(member, "__get__")


_TORCH = _words("""
abs absolute acos acosh adaptive_avg_pool1d adaptive_max_pool1d add addbmm addcdiv addcmul addmm
addmv addr adjoint all allclose alpha_dropout amax amin aminmax angle any arange arccos arccosh
arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort argwhere as_strided as_tensor asin
asinh atan atan2 atanh avg_pool1d baddbmm bartlett_window batch_norm bernoulli bilinear bincount
bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
blackman_window block_diag bmm broadcast_to bucketize cat ceil celu channel_shuffle chunk clamp
clamp_max clamp_min clip clone column_stack combinations complex concat concatenate conj
conj_physical constant_pad_nd conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
conv_transpose3d copysign corrcoef cos cosh cosine_embedding_loss cosine_similarity count_nonzero
cov cross ctc_loss cummax cummin cumprod cumsum cumulative_trapezoid deg2rad detach diag diag_embed
diagflat diagonal diagonal_scatter diff digamma dist div divide dot dropout dsplit dstack einsum
embedding embedding_bag empty empty_like eq equal erf erfc erfinv exp exp2 expm1 eye
feature_alpha_dropout feature_dropout fill fix flatten flip fliplr flipud float_power floor
floor_divide fmax fmin fmod frac full full_like gather ge gelu ger greater greater_equal
grid_sampler group_norm gt hamming_window hann_window hardshrink heaviside hinge_embedding_loss
histc hsplit hstack hypot i0 igamma igammac imag index_add index_copy index_fill index_put
index_select inner instance_norm inverse is_complex is_floating_point isclose isfinite isin isinf
isnan isneginf isposinf isreal kaiser_window kl_div kron kthvalue layer_norm lcm ldexp le lerp less
less_equal lgamma linspace log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp
logdet logical_and logical_not logical_or logical_xor logit logspace logsumexp lt
margin_ranking_loss masked_fill masked_scatter masked_select matmul matrix_exp matrix_power max
max_pool1d max_pool2d max_pool3d maximum mean median min minimum mm mode moveaxis movedim msort mul
multinomial multiply mv nan_to_num nanmean nanmedian nanquantile nansum narrow ne neg negative
nextafter nonzero norm normal not_equal numel ones ones_like outer pairwise_distance pdist permute
pinverse pixel_shuffle pixel_unshuffle poisson poisson_nll_loss polar polygamma positive pow prelu
prod quantile rad2deg rand rand_like randint randint_like randn randn_like randperm range ravel real
reciprocal relu relu_ remainder renorm repeat_interleave reshape resolve_conj resolve_neg rms_norm
roll rot90 round row_stack rrelu rsqrt rsub scalar_tensor scatter scatter_add scatter_reduce
searchsorted select select_scatter selu sgn sigmoid sign signbit sin sinc sinh slice_scatter
softmax sort split_with_sizes sqrt square squeeze stack std std_mean sub subtract sum svd swapaxes
swapdims t take take_along_dim tan tanh tensor tensor_split threshold tile topk trace transpose
trapezoid tril tril_indices triplet_margin_loss triu triu_indices true_divide trunc unbind
unflatten unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze vander var var_mean vdot
view_as_complex view_as_real vsplit vstack where xlogy zeros zeros_like
""")
_TORCH_FUNCTIONAL = _words("""
atleast_1d atleast_2d atleast_3d block_diag broadcast_shapes broadcast_tensors cartesian_prod cdist
chain_matmul einsum istft meshgrid norm split stft tensordot unique unique_consecutive
""")
_NN = _words("""
adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d
avg_pool3d binary_cross_entropy col2im cross_entropy_loss elu elu_ gelu gelu_ glu hardsigmoid
hardsigmoid_ hardswish hardswish_ hardtanh hardtanh_ huber_loss im2col l1_loss leaky_relu
leaky_relu_ linear log_sigmoid mish mish_ mse_loss multi_margin_loss multilabel_margin_loss
nll_loss nll_loss2d nll_loss_nd one_hot pad pad_sequence reflection_pad1d reflection_pad2d
reflection_pad3d relu6 relu6_ replication_pad1d replication_pad2d replication_pad3d
scaled_dot_product_attention silu silu_ smooth_l1_loss soft_margin_loss softplus softshrink
upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
upsample_nearest3d upsample_trilinear3d
""")
_FUNCTIONAL = _words("""
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
adaptive_max_pool1d_with_indices adaptive_max_pool2d adaptive_max_pool2d_with_indices
adaptive_max_pool3d adaptive_max_pool3d_with_indices affine_grid alpha_dropout avg_pool1d avg_pool2d
avg_pool3d batch_norm bilinear binary_cross_entropy binary_cross_entropy_with_logits celu
channel_shuffle conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
cosine_embedding_loss cosine_similarity cross_entropy ctc_loss dropout dropout1d dropout2d dropout3d
elu embedding embedding_bag feature_alpha_dropout fold gaussian_nll_loss gelu glu grid_sample
group_norm grouped_mm gumbel_softmax hardshrink hardsigmoid hardswish hardtanh hinge_embedding_loss
huber_loss instance_norm interpolate kl_div l1_loss layer_norm leaky_relu linear
local_response_norm log_softmax logsigmoid lp_pool1d lp_pool2d lp_pool3d margin_ranking_loss
max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d
max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d mish mse_loss multi_margin_loss
multilabel_margin_loss multilabel_soft_margin_loss nll_loss normalize one_hot pad pairwise_distance
pdist pixel_shuffle pixel_unshuffle poisson_nll_loss prelu relu relu6 rms_norm rrelu
scaled_dot_product_attention selu sigmoid silu smooth_l1_loss soft_margin_loss softmax softmin
softplus softshrink softsign tanh tanhshrink threshold triplet_margin_loss unfold upsample
upsample_bilinear upsample_nearest
celu_ elu_ hardtanh_ leaky_relu_ relu_ rrelu_ selu_ threshold_
""")
_LINALG = _words("""
cross det diagonal eig eigh eigvals eigvalsh inv inv_ex matmul matrix_exp matrix_norm matrix_power
matrix_rank multi_dot norm pinv qr slogdet solve solve_ex solve_triangular svd svdvals vecdot
vector_norm cholesky cholesky_ex
""")
_FFT = _words("""
fft fft2 fftfreq fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft rfft2
rfftfreq rfftn
""")
_SPECIAL = _words("""
digamma entr erf erfc erfcx erfinv exp2 expit expm1 gammainc gammaincc gammaln i0 i0e i1 i1e log1p
log_ndtr log_softmax logit logsumexp ndtr ndtri polygamma psi round sinc softmax xlog1py xlogy zeta
""")
_OPERATORS = _words("""
abs add and_ concat contains eq floordiv ge getitem gt iadd iand ifloordiv ilshift imatmul imod imul
index inv invert ior ipow irshift is_ is_not isub itruediv ixor le lshift lt matmul mod mul ne neg
not_ or_ pos pow rshift setitem sub truediv truth xor
""")
_MATH = _words("ceil cos exp floor gcd isqrt log log10 log2 pow prod sin sqrt trunc")
_BUILTINS = _words("abs bool float getattr int len max min round sum")

_METHODS = _words("""
bfloat16 bool byte cdouble cfloat chalf char contiguous copy_ cpu cuda dim double element_size
expand expand_as fill_diagonal_ float half index int is_contiguous is_signed item long ndimension
nelement
new_empty new_empty_strided new_full new_ones new_tensor new_zeros repeat requires_grad_ reshape_as
short size split storage_offset stride sum_to_size to tolist type type_as unfold unique
unique_consecutive view view_as zero_
bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_
""")
_NOT_METHODS = frozenset(("numpy", "data_ptr", "from_numpy"))
"""Methods of the op table that access raw memory: allowed in a graph, not in a file."""
ATTRIBUTES = frozenset(
    _words(
        "shape dtype device ndim layout T mT H mH real imag data grad requires_grad is_cuda "
        "is_sparse itemsize nbytes"
    )
)
"""Attributes of a tensor that a `getattr` node may read: data, never a method."""


def function_name(function: Any) -> str:
    """Return the dotted name by which `find_function` finds `function`."""
    if isinstance(function, AppliedFunction):
        return function.stored_name()
    name = _get_qualified_name(function)
    name = name.replace("_operator.", "operator.")
    return name if "." in name else f"builtins.{name}"


@functools.cache
def functions() -> dict[str, Callable[..., Any]]:
    """Return the functions of torch and Python that a file may call, by name."""
    bindings: Any = torch._C  # these modules are not in torch's type stubs
    table = {
        **_named("torch", torch, _TORCH),
        **_named("torch.functional", torch.functional, _TORCH_FUNCTIONAL),
        **_named("torch.nn.functional", F, _FUNCTIONAL),
        **_named("torch._C._nn", torch._C._nn, _NN),
        **_named("torch._C._linalg", bindings._linalg, [f"linalg_{n}" for n in _LINALG]),
        **_named("torch._C._fft", bindings._fft, [f"fft_{n}" for n in _FFT]),
        **_named("torch._C._special", bindings._special, [f"special_{n}" for n in _SPECIAL]),
        **_named("torch.linalg", torch.linalg, _LINALG),
        **_named("torch.fft", torch.fft, _FFT),
        **_named("torch.special", torch.special, _SPECIAL),
        **_named("operator", operator, _OPERATORS),
        **_named("math", math, _MATH),
        **{f"builtins.{name}": getattr(builtins, name) for name in _BUILTINS},
    }
    listed = {function_name(f): f for f in FUNCTION_OPS if callable(f)}
    return {
        n: f for n, f in {**listed, **table}.items() if n.rpartition(".")[2] not in _NOT_METHODS
    }


def _named(place: str, module: Any, names: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """Return the functions of `names` that this release of torch has."""
    functions = {name: getattr(module, name, None) for name in names}
    return {
        f"{place}.{n}": f for n, f in functions.items() if f is not None and not isinstance(f, type)
    }


@functools.cache
def methods() -> frozenset[str]:
    """Return the tensor methods that a file may call, with in-place versions of functions."""
    listed = {*METHOD_OPS, *_METHODS, *_TORCH, *_TORCH_FUNCTIONAL}
    listed |= {f"{name}_" for name in listed}
    return frozenset(n for n in listed if callable(getattr(torch.Tensor, n, None))) - _NOT_METHODS


_TRANSFORMERS = re.compile(
    r"transformers\.(models\.[a-z0-9_]+\.modeling_[a-z0-9_]+|pytorch_utils|activations"
    r"|modeling_outputs|modeling_layers|integrations\.[a-z_]+)\.([A-Za-z_][A-Za-z0-9_]*)",
    re.ASCII,
)
_OWN_CLASSES = re.compile(
    r"chop\.(?:nn\.modules|nn\.quantized\.modules|kernels)\.(?:[a-z0-9_.]+\.)?"
    r"([A-Za-z][A-Za-z0-9_]*)",
    re.ASCII,
)
_SMALL_PLACES = ("transformers.activations", "transformers.pytorch_utils")
_OWN_FUNCTIONS = re.compile(
    r"chop\.(?:nn\.quantized\.functional|kernels\.[a-z0-9_]+)\.[a-z][a-z0-9_]*", re.ASCII
)
_AUTOGRAD = re.compile(r"(transformers\.models\.[a-z0-9_.]+\.[A-Za-z_][A-Za-z0-9_]*)\.apply")
_PLAIN_ENDINGS = ("Norm", "Activation", "Gelu", "GELU", "GeLU", "Conv1D")
_LAYER_ENDINGS = (
    *_PLAIN_ENDINGS,
    *("Embedding", "Embeddings", "Linear", "DropPath", "Depth", "Dropout", "Conv1d", "Conv2d"),
    *("Conv3d", "Pool1d", "Pool2d", "Pad", "Padding"),
)
"""Endings of layer names: checked first, because looking up a class imports its module."""


def find_function(name: str) -> Callable[..., Any] | None:
    """Return the function that a file may call by `name`, or None."""
    name = current_path(name)
    if name in functions():
        return functions()[name]
    if _OWN_FUNCTIONS.fullmatch(name):
        function = _own_attribute(name)
        return function if isinstance(getattr(function, "op", None), Op) else None
    match = _AUTOGRAD.fullmatch(name)
    cls = _transformers_attribute(match[1]) if match else None
    is_function = isinstance(cls, type) and issubclass(cls, torch.autograd.Function)
    return cls.apply if is_function else None  # type: ignore[union-attr]


@functools.cache
def torch_layers() -> dict[str, type[nn.Module]]:
    """Return torch's layers, the parts of its parametrisations and `chop.ir.modes`, by name."""
    public = [c for c in vars(nn).values() if isinstance(c, type) and issubclass(c, nn.Module)]
    layers = [c for c in public if c.__module__.startswith("torch.nn.modules.")]
    layers = [c for c in layers if not c.__name__.startswith("Lazy")]
    more: list[Any] = [
        nn.modules.linear.NonDynamicallyQuantizableLinear,
        parametrize.ParametrizationList,
        parametrizations._WeightNorm,
        parametrizations._SpectralNorm,
        parametrizations._Orthogonal,
        modes.ModeConstant,
        modes.RandomDraw,
    ]
    return {f"{c.__module__}.{c.__qualname__}": c for c in (*layers, *more)}


def find_layer(name: str) -> type[nn.Module] | None:
    """Return the class that a file may instantiate as a module, or None."""
    name = current_path(name)
    if name in torch_layers():
        return torch_layers()[name]
    if _OWN_CLASSES.fullmatch(name):
        own = _own_attribute(name)
        is_leaf = getattr(own, "mase_leaf", False) or hasattr(own, "plain_class")
        return own if _is_layer(own, name) and is_leaf else None
    may_be_layer = name.endswith(_LAYER_ENDINGS) or name.rpartition(".")[0] in _SMALL_PLACES
    cls = _transformers_attribute(name) if may_be_layer else None
    return cls if _is_layer(cls, name) and _is_plain_layer(cls) else None


def _is_layer(cls: Any, name: str) -> bool:
    is_module = isinstance(cls, type) and issubclass(cls, nn.Module)
    return is_module and f"{cls.__module__}.{cls.__qualname__}" == name


def _is_plain_layer(cls: Any) -> bool:
    """Return True if a class of transformers is an op of the table or computes as simply."""
    is_plain = cls.__name__.endswith(_PLAIN_ENDINGS) or cls.__module__ in _SMALL_PLACES
    return is_plain or op_of_module(cls.__new__(cls)) is not None  # it reads only the class


def find_output(name: str) -> type | None:
    """Return the output class (a ModelOutput of transformers) that a file may name, or None."""
    cls = _transformers_attribute(name)
    if not isinstance(cls, type):
        return None
    from transformers.utils.generic import ModelOutput

    return cls if issubclass(cls, ModelOutput) else None


def _own_attribute(name: str) -> Any:
    """Return an attribute of a module of ours, which may create it lazily."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return None


def _transformers_attribute(name: str) -> Any:
    """Return an attribute of an allowed module of transformers, never one created lazily."""
    if not _TRANSFORMERS.fullmatch(name):
        return None
    module, _, attribute = name.rpartition(".")
    try:
        return vars(importlib.import_module(module)).get(attribute)
    except ImportError:
        return None


RECIPES = {"chop.nn.quantized.convert.mixed_class": 2, "chop.nn.modules.masked.masked_class": 1}
"""Function that creates a class at run time -> the number of classes it combines."""


def make_class(maker: str, parts: list[type[nn.Module]]) -> type[nn.Module] | None:
    """Return the class that a recipe creates from `parts`, or None if they do not fit."""
    if RECIPES.get(maker) != len(parts):
        return None
    if maker.endswith(".mixed_class"):
        base = getattr(parts[0], "float_class", None)
        if base is None or not issubclass(parts[1], base) or hasattr(parts[1], "float_class"):
            return None
    elif hasattr(parts[0], "float_class") or hasattr(parts[0], "plain_class"):
        return None
    cls: type[nn.Module] = _own_attribute(maker)(*parts)
    return cls


def look_up(name: str) -> Any:
    """Return the object `name` of the installed packages, for names this process wrote itself."""
    parts = current_path(name).split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            place: Any = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for part in parts[split:]:
            place = getattr(place, part, None)
        if place is not None:
            return place
    return None
