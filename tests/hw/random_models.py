"""Small random models with random number formats: what the fuzz of the hardware runs on.

`random_case(seed)` is a function of its seed alone. To add an op: a function `(draw, shape)` that
gives a layer or function, in `UNARY`, under the number of dimensions (without the batch) of what it
takes. `layer_case(index)` goes through all layers × all kinds of format, one layer a case.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from chop.hw.lower import Parallelism
from chop.hw.reference.exact_model import quantizers_of
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.ops import find_op
from chop.nn.quantizers import Integer
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import fuse_conv_bn_transform_pass, quantize_transform_pass

TABLES = ("sigmoid", "tanh", "gelu", "silu", "elu", "mish", "softplus", "softsign")
ROUNDINGS = ("nearest_even", "nearest_even", "nearest_away", "floor", "toward_zero")


@dataclass(frozen=True)
class Case:
    """A quantised graph, the settings of its design, and the seed that both come from."""

    seed: int
    graph: MaseGraph
    parallelism: Parallelism
    text: str
    share_layers: int = 0
    """Tensors in flight through the block that repeated layers share; 0: no shared block."""


@dataclass
class Step:
    """One op: `call(*tensors)` on the values numbered `sources`; `module` is called if given."""

    text: str
    call: Callable
    sources: tuple[int, ...]


class Draw(random.Random):
    """Random choices for a model."""

    def chance(self, probability):
        return self.random() < probability

    def normal(self, *shape, scale=0.5):
        generator = torch.Generator().manual_seed(self.getrandbits(32))
        return scale * torch.randn(*shape, generator=generator)


class Steps(nn.Module):
    """A model that runs steps one after the other and gives some of their values."""

    def __init__(self, steps, outputs):
        super().__init__()
        self.steps, self.outputs = steps, outputs
        modules = [step.call for step in steps if isinstance(step.call, nn.Module)]
        self.layers = nn.ModuleList(modules)

    def forward(self, *inputs):
        values = list(inputs)
        for step in self.steps:
            values.append(step.call(*(values[i] for i in step.sources)))
        found = tuple(values[i] for i in self.outputs)
        return found[0] if len(found) == 1 else found


# -- ops -------------------------------------------------------------------------------------------


def _filled(draw, module):
    """The module with random parameters and statistics."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(draw.normal(*parameter.shape))
        if getattr(module, "running_mean", None) is not None:
            module.running_mean.copy_(draw.normal(*module.running_mean.shape))
            module.running_var.copy_(draw.normal(*module.running_var.shape).abs() + 0.3)
            if draw.chance(0.2):
                module.running_mean.zero_()
    return module.eval()


def linear(draw, shape):
    return _filled(draw, nn.Linear(shape[-1], draw.randint(1, 4), bias=draw.chance(0.7)))


def conv1d(draw, shape):
    kernel = draw.randint(1, min(3, shape[1]))
    options = {"stride": draw.randint(1, 2), "padding": draw.randint(0, kernel - 1)}
    return _filled(
        draw, nn.Conv1d(shape[0], draw.randint(1, 4), kernel, bias=draw.chance(0.7), **options)
    )


def conv2d(draw, shape):
    kernel = [draw.randint(1, min(3, n)) for n in shape[1:]]
    padding = [draw.randint(0, k - 1) if draw.chance(0.5) else 0 for k in kernel]
    stride = [draw.choice((1, 1, 2)) for _ in kernel]
    options = {"stride": tuple(stride), "padding": tuple(padding), "bias": draw.chance(0.7)}
    return _filled(draw, nn.Conv2d(shape[0], draw.randint(1, 3), tuple(kernel), **options))


def batch_norm(draw, shape):
    kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
    return _filled(draw, kind(shape[0], affine=draw.chance(0.85)))


def max_pool(draw, shape):
    kernel = draw.randint(1, min(3, *shape[1:]))
    options = {"stride": draw.randint(1, kernel), "padding": draw.choice((0, kernel // 2))}
    if draw.chance(0.5):
        return nn.MaxPool2d(kernel, **options)
    return lambda x: F.max_pool2d(x, kernel, **options)


def avg_pool(draw, shape):
    kernel = draw.randint(1, min(3, *shape[1:]))
    options = {"stride": draw.randint(1, kernel), "padding": draw.choice((0, kernel // 2))}
    if draw.chance(0.25):
        options["count_include_pad"] = False
    if draw.chance(0.15):
        options["divisor_override"] = draw.choice((1, 2, 3, 5, 8))
    if draw.chance(0.5):
        return nn.AvgPool2d(kernel, **options)
    return lambda x: F.avg_pool2d(x, kernel, **options)


def global_pool(draw, shape):
    if draw.chance(0.5):
        return nn.AdaptiveAvgPool2d(1)
    return lambda x: F.adaptive_avg_pool2d(x, (1, 1))


def rectifier(draw, shape):
    slope = draw.choice((0.125, 0.5, 0.01, 0.3, 0.75))
    return draw.choice(
        (
            nn.ReLU(),
            F.relu,
            torch.relu,
            lambda x: x.relu(),
            nn.LeakyReLU(slope),
            lambda x: F.leaky_relu(x, slope),
            lambda x: F.leaky_relu(x, negative_slope=slope),
        )
    )


def prelu(draw, shape):
    slopes = nn.PReLU(draw.choice((1, shape[0])), init=draw.choice((0.25, 0.3, -0.125)))
    return _filled(draw, slopes) if draw.chance(0.5) else slopes


def padded_conv(draw, shape):
    left, right, above, below = (draw.randint(0, most) for most in (2, 2, 1, 1))
    pad = nn.ZeroPad2d((left, right, above, below))
    kernel = min(2, shape[1] + above + below), min(3, shape[2] + left + right)
    return nn.Sequential(pad, _filled(draw, nn.Conv2d(shape[0], draw.randint(1, 3), kernel)))


def hard(draw, shape):
    return draw.choice((nn.Hardsigmoid(), F.hardsigmoid, nn.Hardswish(), F.hardswish))


def table(draw, shape):
    modules = (nn.Sigmoid(), nn.Tanh(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.ELU(0.5),
               nn.Mish(), nn.Softplus(), nn.Softsign())  # fmt: skip
    functions = (torch.sigmoid, torch.tanh, F.gelu, F.silu, F.elu, F.mish, F.softplus, F.softsign)
    return draw.choice((*modules, *functions))


def wiring(draw, shape):
    return draw.choice((nn.Identity(), nn.Dropout(), lambda x: x.contiguous()))


def flatten(draw, shape):
    return draw.choice(
        (nn.Flatten(), lambda x: torch.flatten(x, 1), lambda x: x.reshape(x.size(0), -1))
    )


def turned(draw, shape):
    if len(shape) == 2:
        return draw.choice((lambda x: x.transpose(1, 2), lambda x: x.permute(0, 2, 1)))
    axes = [1, 2, 3]
    draw.shuffle(axes)
    return lambda x: x.permute(0, *axes)


def folded(draw, shape):
    """A vector as rows, rows as others."""
    size = 1
    for n in shape:
        size *= n
    rows = draw.choice([d for d in range(1, size + 1) if size % d == 0])
    return lambda x: x.reshape(-1, rows, size // rows)


def bent(draw, shape):
    return lambda x: x.unsqueeze(1)


NUMBERS = (2, -1, 3, 0.5, -0.25, 0.03125, 100, 7.5, 0.3, -0.1, 1 / 3, 1e-3)
"""Plain numbers: whole, short and long binary fractions, and beyond what small formats hold."""


def scalar(draw, shape):
    number = draw.choice(NUMBERS)
    alpha = draw.choice((2, 0.5, -1.5))
    return draw.choice(
        (
            lambda x: x + number,
            lambda x: number + x,
            lambda x: x - number,
            lambda x: number - x,
            lambda x: x * number,
            lambda x: number * x,
            lambda x: torch.add(x, number, alpha=alpha),
            lambda x: torch.sub(x, number, alpha=alpha),
            lambda x: x.mul(number),
        )
    )


def sliced(draw, shape):
    axis = draw.randrange(len(shape))
    first = draw.randrange(shape[axis])
    last = draw.randint(first + 1, shape[axis])
    whole = [slice(None)] * (axis + 1)
    cut = draw.choice((slice(first, last), slice(first, None, 2), slice(first - shape[axis], None)))
    return lambda x: x[(*whole, cut)]


class Masked(nn.Module):
    """Softmax of rows with a mask that is a constant: added, or filled in."""

    def __init__(self, mask, how):
        super().__init__()
        self.register_buffer("mask", mask)
        self.how = how

    def forward(self, x):
        return F.softmax(self.how(x, self.mask), -1)


def masked(draw, shape):
    fill = draw.choice((float("-inf"), torch.finfo(torch.float32).min))
    sizes = shape[-2:] if draw.chance(0.7) else shape[-1:]
    is_masked = draw.normal(*sizes) > 0.3
    numbers = draw.choice((torch.zeros(sizes), torch.arange(sizes[-1]) * -0.25))
    added = torch.where(is_masked, fill, numbers)
    return draw.choice(
        (
            Masked(added, lambda x, mask: x + mask),
            Masked(added[None], lambda x, mask: mask + x),
            Masked(is_masked, lambda x, mask: x.masked_fill(mask, fill)),
            Masked(~is_masked, lambda x, mask: torch.where(mask, x, fill)),
        )
    )


def rows(draw, shape):
    """A norm or softmax of the last dimension."""
    size = shape[-1]
    norms = (nn.LayerNorm(size), nn.RMSNorm(size), nn.LayerNorm(size, elementwise_affine=False))
    return draw.choice((*(_filled(draw, norm) for norm in norms), nn.Softmax(-1)))


def flat_rows(draw, shape):
    """A norm or softmax of all elements, or of each by itself: a view in front of it."""
    size = 1
    for n in shape:
        size *= n
    if len(shape) < 3 and draw.chance(0.3):
        return nn.Sequential(nn.Unflatten(len(shape), (shape[-1], 1)), rows(draw, (1,)))
    return nn.Sequential(nn.Flatten(), rows(draw, (size,)))


UNARY = {
    1: (linear,) * 4
    + (batch_norm, rectifier, rectifier, hard, table, wiring, folded)
    + (scalar, scalar, sliced, rows, flat_rows, masked, prelu),
    2: (linear,)
    + (conv1d,) * 2
    + (batch_norm, rectifier, hard, table, flatten, turned, folded)
    + (scalar, sliced, rows, flat_rows, masked),
    3: (conv2d,) * 4
    + (batch_norm, max_pool, avg_pool, avg_pool, global_pool, rectifier, rectifier, hard, table)
    + (flatten, flatten, turned, linear, scalar, sliced, rows, flat_rows, masked)
    + (prelu, padded_conv),
}

BINARY = {
    "x + y": lambda draw: lambda x, y: x + y,
    "x - y": lambda draw: lambda x, y: x - y,
    "x * y": lambda draw: lambda x, y: x * y,
    "add alpha": lambda draw: _with_alpha(draw, torch.add),
    "sub alpha": lambda draw: _with_alpha(draw, torch.sub),
    "sub by keyword": lambda draw: lambda x, y: torch.sub(other=y, input=x),
    "add by keyword": lambda draw: lambda x, y: torch.add(input=x, other=y),
    "x.add": lambda draw: lambda x, y: x.add(y),
    "x.mul": lambda draw: lambda x, y: x.mul(y),
    "x.sub alpha": lambda draw: _with_alpha(draw, torch.Tensor.sub),
}


def _with_alpha(draw, function):
    alpha = draw.choice((2, 0.5, -1, 3, 0.25, -0.75))
    return lambda x, y: function(x, y, alpha=alpha)


# -- a model ---------------------------------------------------------------------------------------


def random_model(draw):
    """A model, its inputs (without formats) and what it is made of."""
    shape = draw.choice(
        (
            (draw.randint(1, 6),),
            (draw.randint(1, 6),),
            (draw.randint(1, 3), draw.randint(1, 5)),
            (draw.randint(1, 3), draw.randint(2, 5), draw.randint(2, 5)),
            (draw.randint(1, 3), draw.randint(2, 5), draw.randint(2, 5)),
        )
    )
    inputs = [torch.zeros(2, *shape) for _ in range(2 if draw.chance(0.2) else 1)]
    values, steps = list(inputs), []
    for _ in range(draw.choice((1, 2, 2, 3, 3, 4, 5)) if draw.chance(0.98) else 0):
        step = _step(draw, values, len(inputs))
        values.append(_run(step, values))
        steps.append(step)
    used = {i for step in steps for i in step.sources}
    outputs = [i for i in range(len(inputs), len(values)) if i not in used]
    outputs = outputs or [0]
    if draw.chance(0.12):
        outputs.append(draw.randrange(len(values)))
    text = "; ".join(f"{s.text}{list(s.sources)}" for s in steps)
    return Steps(steps, outputs).eval(), inputs, f"{shape}: {text} -> {outputs}"


def _run(step, values):
    with torch.no_grad():
        return step.call(*(values[i] for i in step.sources))


def _step(draw, values, inputs):
    last = len(values) - 1
    source = last if draw.chance(0.8) else draw.randrange(len(values))
    x = values[source]
    alike = [i for i, v in enumerate(values) if v.shape == x.shape]
    if draw.chance(0.3 if inputs == 1 else 0.5):
        text = draw.choice(list(BINARY))
        other = draw.choice(alike)
        pair = (source, other) if draw.chance(0.5) else (other, source)
        return Step(text, BINARY[text](draw), pair)
    shape = tuple(x.shape[1:])
    make = draw.choice(UNARY[len(shape)])
    return Step(make.__name__, make(draw, shape), (source,))


# -- formats ---------------------------------------------------------------------------------------


def random_format(draw, role, widths):
    """Settings of a fixed-point format under their keys: `data_in_width` …"""
    width = draw.choice(widths)
    is_signed = draw.chance(0.8)
    settings = {"width": width, "frac_width": width - is_signed - draw.choice((0, 1, 1, 2, 2, 3))}
    if draw.chance(0.08):
        settings["frac_width"] = draw.randint(-2, width + 3)
    if not is_signed:
        settings["is_signed"] = False
    settings["rounding"] = draw.choice(ROUNDINGS)
    if is_signed and width > 1 and draw.chance(0.15):
        settings["narrow"] = True
    elif width <= 24 and draw.chance(0.12):
        settings["overflow"] = "wrap"
    return {f"{role}_{key}": value for key, value in settings.items()}


WIDTHS = (1, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 8, 10, 12, 16)
TABLE_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)
WIDE = (24, 32)


def random_config(draw, op):
    """A config for a node of the op named `op`."""
    widths = TABLE_WIDTHS if op in TABLES else WIDTHS
    if draw.chance(0.03) and op not in (*TABLES, *ROW_OPS):
        widths = WIDE
    config = {"name": "integer", **({"arithmetic": "integer"} if op in ROW_OPS else {})}
    for role in ("data_in_0", "data_in_1") if op in ("add", "sub", "mul") else ("data_in",):
        config |= random_format(draw, role, widths)
    config |= random_format(draw, "weight", WIDTHS) | random_format(draw, "bias", WIDTHS)
    if op in ROW_OPS or draw.chance(0.9 if op in NOT_DYADIC else 0.4):
        config |= random_format(draw, "data_out", WIDTHS)
    return config


ROW_OPS = ("softmax", "layer_norm", "rms_norm")
"""Ops with integer arithmetic of their own."""
NOT_DYADIC = (
    *TABLES, "hardswish", "hardsigmoid", "adaptive_avg_pool2d", "avg_pool2d",
    "batch_norm1d", "batch_norm2d",
)  # fmt: skip
"""Ops whose results fixed point does not hold: they want a format."""
PARAMETRIC = ("linear", "conv1d", "conv2d", "batch_norm1d", "batch_norm2d", *TABLES, *ROW_OPS)
"""Ops that hardware builds only in a format."""


def random_case(seed):
    """The case of a seed."""
    draw = Draw(seed)
    return _case(draw, seed, *random_model(draw))


def _case(draw, seed, model, inputs, text):
    """The case of a model in random formats."""
    graph = MaseGraph(model, dummy_in=tuple(inputs) if len(inputs) > 1 else inputs[0])
    if Draw(-seed - 1).chance(0.5):  # batch normalisation behind a convolution becomes part of it
        fuse_conv_bn_transform_pass(graph)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    rules = {}
    for node in graph.fx_graph.nodes:
        op = find_op(node)
        if op is None or op.compute is None or node.op not in CALLS:
            continue
        if draw.chance(0.99 if op.name in PARAMETRIC else 0.8):
            rules[node.name] = {"config": random_config(draw, op.name)}
    if rules:
        quantize_transform_pass(graph, {"by": "name", **rules})
    _set_input_formats(draw, graph)
    return Case(seed, graph, Parallelism(draw.choice((1, 1, 2, 2, 3, 4, 8))), text)


def _set_input_formats(draw, graph):
    """Inputs that something reads as they are get a format by hand, as most would need one."""
    for node in graph.fx_graph.nodes:
        read_in_float = [n for n in node.users if not quantizers_of(n)]
        if node.op == "placeholder" and draw.chance(0.95 if read_in_float else 0.05):
            result = mase_meta(node).common.results["data_out_0"]
            width = draw.choice(WIDTHS[1:])
            result["type"], result["precision"] = "fixed", [width, width - draw.randint(1, 4)]


CALLS = ("call_module", "call_function", "call_method")


# -- constructs that were refused by mistake, or refused and not said so ---------------------------

CONSTRUCTS = {
    "a number and a vector": ((5,), scalar),
    "a number and an image": ((2, 3, 4), scalar),
    "rows of a flat image": ((2, 3, 4), flat_rows),
    "rows of one element": ((4,), lambda draw, shape: folded_rows(draw, (4, 1))),
    "rows with a mask": ((3, 4), masked),
    "heads with a mask": ((2, 3, 4), masked),
    "a rectifier with a slope per channel": ((4, 3, 2), prelu),
    "a padded image": ((2, 4, 5), padded_conv),
    "a part of a vector": ((6,), sliced),
    "a part of an image": ((2, 3, 4), sliced),
}


def folded_rows(draw, shape):
    """A norm or softmax behind a view as `shape`."""
    return nn.Sequential(nn.Unflatten(1, shape), rows(draw, shape))


def construct_case(seed):
    """A construct between a rectifier and another layer, in random formats."""
    draw = Draw(f"construct {seed}")
    name = list(CONSTRUCTS)[seed % len(CONSTRUCTS)]
    shape, make = CONSTRUCTS[name]
    steps = [Step("relu", torch.relu, (0,)), Step(name, make(draw, shape), (1,))]
    x = torch.zeros(2, *shape)
    last = _run(steps[1], [x, x])
    behind = draw.choice((rectifier, hard, linear))
    steps.append(Step(behind.__name__, behind(draw, tuple(last.shape[1:])), (2,)))
    return _case(draw, seed, Steps(steps, [3]).eval(), [x], name)


class Constant(nn.Module):
    """A function of an input and a constant."""

    def __init__(self, values, function):
        super().__init__()
        self.register_buffer("values", torch.tensor(values))
        self.function = function

    def forward(self, x):
        return self.function(x, self.values)


def _spoilt(layer, name, value):
    with torch.no_grad():
        getattr(layer, name).view(-1)[0] = value
    return layer.eval()


FINITE = "one of 1 such elements. Allowed: finite numbers"
REFUSED = {
    "NaN weight": (
        (3,),
        lambda: _spoilt(nn.Linear(3, 2), "weight", math.nan),
        rf"weight' is nan at \[0, 0\], {FINITE}",
    ),
    "infinite bias": (
        (3,),
        lambda: _spoilt(nn.Linear(3, 2), "bias", math.inf),
        rf"bias' is inf at \[0\], {FINITE}",
    ),
    "NaN in a convolution": (
        (2, 4, 4),
        lambda: _spoilt(nn.Conv2d(2, 1, 3), "weight", math.nan),
        r"weight' is nan at \[0, 0, 0, 0\]",
    ),
    "NaN statistics": (
        (2, 4, 4),
        lambda: _spoilt(nn.BatchNorm2d(2), "running_mean", math.nan),
        r"running_mean' is nan at \[0\]",
    ),
    "NaN constant": (
        (3,),
        lambda: Constant([math.nan, 0.0, 1.0], lambda x, c: x + c),
        r"values' is nan at \[0\]",
    ),
    "minus infinity as a factor": (
        (3,),
        lambda: Constant([-math.inf, 0.0, 1.0], lambda x, c: x * c),
        "operand 1 has elements of minus infinity. Allowed: a mask",
    ),
    "a mask that no softmax reads": (
        (3,),
        lambda: Constant([-math.inf, 0.0, 0.0], lambda x, c: torch.relu(x + c)),
        "'relu_1' reads what is masked. Allowed: softmax",
    ),
    "an infinite number": (
        (3,),
        lambda: lambda x: x * math.inf,
        r"\(mul\): the number inf. Allowed: finite numbers",
    ),
    "a mask of small numbers": (
        (2, 3),
        lambda: Constant([True, False, False], lambda x, c: F.softmax(x.masked_fill(c, -1e9), -1)),
        r"value = -1000000000.0. Allowed: -2\*\*100 or less",
    ),
    "reflected padding": (
        (2, 4, 4),
        lambda: nn.Conv2d(2, 1, 3, padding=1, padding_mode="reflect"),
        "padding_mode = 'reflect'. Allowed: padding_mode = 'zeros'",
    ),
    "the first of a batch": ((3,), lambda: lambda x: x[:1], "a part of the batch. Allowed: some"),
    "every other of a batch": ((3,), lambda: lambda x: x[::2], "a part of the batch"),
    "one of a batch": ((2, 3), lambda: lambda x: x[0], "a part of the batch"),
    "no element": ((3,), lambda: lambda x: x[:, 2:2], "no element. Allowed: some elements of each"),
}
"""What cannot be built: the shape of the input, the layer, and words of the refusal."""


def refused_case(name):
    """A construct that cannot be built, behind a rectifier."""
    shape, make, _ = REFUSED[name]
    model = Steps([Step("relu", torch.relu, (0,)), Step(name, make(), (1,))], [2]).eval()
    return _case(Draw(name), 0, model, [torch.zeros(2, *shape)], name)


# -- every layer in every kind of format -----------------------------------------------------------

RANGES = (
    {},
    {"narrow": True},
    {"overflow": "wrap"},
    {"is_signed": False},
    {"is_signed": False, "overflow": "wrap"},
)
KINDS = [(span, rounding) for span in RANGES for rounding in sorted(set(ROUNDINGS))]
"""Every way a fixed-point format brings numbers to itself; widths are drawn."""
IMAGE, ROWS, VECTOR = (2, 4, 4), (2, 5), (5,)
LAYERS = {
    "linear": (VECTOR, linear),
    "conv1d": (ROWS, conv1d),
    "conv2d": (IMAGE, conv2d),
    "batch_norm1d": (VECTOR, batch_norm),
    "batch_norm2d": (IMAGE, batch_norm),
    "max_pool2d": (IMAGE, lambda draw, shape: nn.MaxPool2d(2, draw.randint(1, 2), 1)),
    "avg_pool2d": (IMAGE, avg_pool),
    "adaptive_avg_pool2d": (IMAGE, global_pool),
    "relu": (VECTOR, lambda draw, shape: nn.ReLU()),
    "leaky_relu": (VECTOR, lambda draw, shape: nn.LeakyReLU(draw.choice((0.125, 0.01, 0.3)))),
    "hardsigmoid": (VECTOR, lambda draw, shape: nn.Hardsigmoid()),
    "hardswish": (VECTOR, lambda draw, shape: nn.Hardswish()),
    "table": (VECTOR, table),
    "add": (VECTOR, lambda draw, shape: BINARY["add alpha"](draw)),
    "sub": (VECTOR, lambda draw, shape: BINARY["x - y"](draw)),
    "mul": (VECTOR, lambda draw, shape: BINARY["x * y"](draw)),
}
ROUNDS = len(KINDS)
"""After so many rounds every layer has met every kind; after 5, every range and every rounding."""


ROW_LAYERS = {
    "layer_norm": (
        ROWS,
        lambda draw, shape: _filled(draw, nn.LayerNorm(5, draw.choice((1e-5, 0.1)))),
    ),
    "rms_norm": (ROWS, lambda draw, shape: _filled(draw, nn.RMSNorm(5, draw.choice((None, 0.1))))),
    "softmax": (ROWS, lambda draw, shape: nn.Softmax(-1)),
    "lines": (VECTOR, lambda draw, shape: draw.choice((nn.GELU(), nn.SiLU(), nn.Tanh()))),
}
"""Layers with integer arithmetic of their own."""


def row_case(index):
    """As `layer_case`, of the layers that compute in integers."""
    return layer_case(index, ROW_LAYERS, {"arithmetic": "integer"})


def layer_case(index, layers=None, settings=None):
    """One layer, its operand in the kind of format of the round `index // len(layers)`."""
    layers = LAYERS if layers is None else layers
    number, name = index // len(layers), list(layers)[index % len(layers)]
    draw = Draw(f"{name} {number}")
    shape, make = layers[name]
    layer = make(draw, shape)
    two = name in ("add", "sub", "mul")
    model = Steps([Step(name, layer, (0, 1) if two else (0,))], [2 if two else 1]).eval()
    inputs = tuple(torch.zeros(2, *shape) for _ in range(1 + two))
    graph = MaseGraph(model, dummy_in=inputs if two else inputs[0])
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    (node,) = (n for n in graph.fx_graph.nodes if n.op in CALLS)
    config = _config_of_kind(draw, find_op(node).name, index % len(layers), number)
    config |= settings or {}
    if name == "lines":
        config["data_in_width"] = draw.choice((13, 14))
    if find_op(node).compute is not None:
        quantize_transform_pass(graph, {"by": "name", node.name: {"config": config}})
    else:
        _set_formats(node, config)
    return Case(index, graph, Parallelism(draw.choice((1, 2, 4))), f"{name}: {config}")


def _config_of_kind(draw, op, layer, number):
    """Settings whose operand has the kind of the round, and the other roles kinds further on."""
    widths = TABLE_WIDTHS[2:] if op in TABLES else (2, 3, 4, 5, 6, 7, 8, 10)
    operands = ("data_in_0", "data_in_1") if op in ("add", "sub", "mul") else ("data_in",)
    config = {"name": "integer"}
    for place, role in enumerate((*operands, "data_out", "weight", "bias")):
        config |= _format_of_kind(draw, role, widths, layer + place, number + place)
    return config


def _format_of_kind(draw, role, widths, layer, number):
    span, rounding = kind_of(layer, number)
    width = draw.choice(widths)
    frac = width - span.get("is_signed", True) - draw.choice((0, 1, 1, 2, 3))
    settings = {"width": width, "frac_width": frac, "rounding": rounding, **span}
    return {f"{role}_{key}": value for key, value in settings.items()}


def kind_of(layer, number):
    """The range and rounding that a layer, by its place in `LAYERS`, meets in a round."""
    roundings = sorted(set(ROUNDINGS))
    turn, place = divmod(number, len(RANGES))
    return RANGES[(place + layer) % len(RANGES)], roundings[(place + turn) % len(roundings)]


def _set_formats(node, config):
    """The formats of an op that has no quantised version, in its metadata."""
    common = mase_meta(node).common
    values = {"data_in": common.args["data_in_0"], "data_out": common.results["data_out_0"]}
    for role, value in values.items():
        own = {k.removeprefix(f"{role}_"): v for k, v in config.items() if k.startswith(role)}
        value.set_format(Integer(**own), is_applied=True)
