"""How each op may be split over devices.

To let an op be split, add its name to a row of `_RULES`; what the rule allows is written in
`chop.distributed.strategies`. An op without a row runs whole on every device, which is always
right.
"""

from __future__ import annotations

_RULES = {
    # result elements come from operand elements at the same (broadcast) place
    "elementwise": "relu relu6 leaky_relu elu celu selu gelu silu mish tanh sigmoid logsigmoid "
    "softplus softsign hardtanh hardswish hardsigmoid hardshrink softshrink tanhshrink threshold "
    "dropout identity add sub mul div pow neg abs exp log sqrt rsqrt reciprocal sin cos tan erf "
    "sign clamp maximum minimum addcmul lerp logical where masked_fill contiguous to",
    # as elementwise, but every element along one dimension is needed
    "along_dimension": "softmax softmin log_softmax cumsum",
    "norm_last": "layer_norm rms_norm",
    "linear": "linear",
    "addmm": "addmm",
    "conv": "conv1d conv2d conv3d",
    "embedding": "embedding",
    "matmul": "matmul bmm",
    "attention": "scaled_dot_product_attention",
    # the same elements in the same order, in other dimensions
    "reshape": "view reshape flatten unflatten squeeze unsqueeze",
    "permute": "permute transpose",
    "expand": "expand",
    "getitem": "getitem",
    "cat": "cat",
    "split": "split chunk",
    "reduce": "sum mean max min prod logsumexp argmax all",
    # reads sizes and types, not elements
    "facts": "size getattr finfo",
}

SHARDING: dict[str, str] = {op: rule for rule, ops in _RULES.items() for op in ops.split()}
"""Op -> the rule by which it may be split."""
