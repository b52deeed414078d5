"""How each op couples the channels of its operands and its result.

To say how an op couples channels, add its name to a row of `_RULES`. An op without a row keeps
every channel it touches: a pass that removes channels leaves those alone.
"""

from __future__ import annotations

_RULES = {
    # result elements come from operand elements at the same (broadcast) place
    "elementwise": "relu relu6 leaky_relu rrelu elu celu selu gelu silu mish tanh sigmoid "
    "logsigmoid softplus softsign hardtanh hardswish hardsigmoid hardshrink softshrink tanhshrink "
    "threshold dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout identity "
    "activation_mask add sub mul div floor_divide remainder pow neg abs exp log sqrt rsqrt "
    "reciprocal sin cos tan erf sign round clamp maximum minimum addcmul lerp compare logical "
    "isnan where masked_fill contiguous to fill constant",
    # as elementwise, but the elements along one dimension are weighed against each other
    "along_dimension": "softmax softmin log_softmax cumsum normalize roll flip",
    "linear": "linear",
    "conv": "conv1d conv2d conv3d",
    "conv_transpose": "conv_transpose1d conv_transpose2d conv_transpose3d",
    # a parameter for each element of the last dimensions, or for each channel
    "norm_last": "layer_norm rms_norm",
    "norm_channel": "batch_norm1d batch_norm2d batch_norm3d batch_norm instance_norm prelu",
    "norm_group": "group_norm",
    "embedding": "embedding",
    # batch and channel dimensions stay, the rest are places
    "places": "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d lp_pool1d "
    "lp_pool2d lp_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d interpolate",
    "matmul": "matmul bmm",
    "attention": "scaled_dot_product_attention",
    # the same elements in the same order; the arguments of the first are the new sizes
    "reshape": "view reshape",
    "regroup": "flatten squeeze unsqueeze",
    "permute": "permute",
    "transpose": "transpose",
    "expand": "expand",
    "cat": "cat",
    "stack": "stack",
    "split": "split chunk",
    "unbind": "unbind",
    "getitem": "getitem",
    "reduce": "sum prod mean var std max min argmax logsumexp all norm",
    # reads sizes and types, not elements
    "facts": "size getattr finfo",
}

CHANNELS: dict[str, str] = {op: rule for rule, ops in _RULES.items() for op in ops.split()}
"""Op -> the rule by which it couples channels."""
