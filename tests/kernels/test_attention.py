"""Attention in one call is attention, on whatever operands a model hands over."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from chop.kernels import attention, scaled_dot_product_attention

INF, NAN = float("inf"), float("nan")
TOKENS = (1, 5, 63, 64, 65, 129, 513)
SIZES = (8, 20, 32, 64, 80, 128)
SHAPES = [
    *((n, n, 20) for n in TOKENS),
    *((65, 65, size) for size in SIZES),
    *((queries, keys, 32) for queries, keys in ((1, 129), (5, 63), (63, 5), (129, 513), (70, 1))),
]
"""Queries, keys, size of a head."""
needs_library = pytest.mark.skipif(attention.library() is None, reason="needs a C++ compiler")


def made(queries: int, keys: int, size: int, *, heads: int = 3, key_heads: int = 3) -> list[Tensor]:
    """Query, key and value as models make them: views of [batch, tokens, heads * size]."""
    shapes = ((queries, heads), (keys, key_heads), (keys, key_heads))
    return [
        torch.randn(2, tokens, count * size).unflatten(-1, (count, size)).transpose(1, 2)
        for tokens, count in shapes
    ]


def kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Our kernel, also where torch's is faster."""
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return attention.run(q, k, v, mask, is_causal, factor)


def exact(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **options: object) -> Tensor:
    wide = mask.double() if mask is not None and mask.is_floating_point() else mask
    operands = (x.double() for x in (q, k, v))
    return F.scaled_dot_product_attention(*operands, attn_mask=wide, **options)  # type: ignore[arg-type]


def is_close(found: Tensor, expected: Tensor, most: float = 16.0, value: float = 4.0) -> bool:
    """To float32 rounding: a score of `most` is off by some units of its last place, which is the
    relative error of a weight; values of `value` are weighed and added."""
    return bool((found - expected).abs().max() < 2.0**-24 * value * (8 + most))


MASKS = {
    "none": lambda b, h, q, k: None,
    "added": lambda b, h, q, k: torch.randn(b, h, q, k),
    "added to all heads": lambda b, h, q, k: torch.randn(b, 1, q, k),
    "added to all queries": lambda b, h, q, k: torch.randn(b, 1, 1, k),
    "added to all keys": lambda b, h, q, k: torch.randn(h, q, 1),
    "added, a matrix": lambda b, h, q, k: torch.randn(q, k),
    "added, transposed": lambda b, h, q, k: torch.randn(b, h, k, q).mT,
    "added, expanded": lambda b, h, q, k: torch.randn(b, 1, 1, k).expand(b, h, q, k),
    "allowed": lambda b, h, q, k: torch.rand(b, h, q, k) > 0.3,
    "allowed to all queries": lambda b, h, q, k: torch.rand(b, 1, 1, k) > 0.3,
    "allowed, transposed": lambda b, h, q, k: (torch.rand(k, q) > 0.3).mT,
}


@needs_library
@pytest.mark.parametrize(("queries", "keys", "size"), SHAPES)
def test_every_shape_is_close_to_float64(queries: int, keys: int, size: int) -> None:
    q, k, v = made(queries, keys, size)
    assert is_close(kernel(q, k, v), exact(q, k, v))


@needs_library
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (65, 70), (33, 129)])
def test_every_mask_is_read_as_torch_reads_it(kind: str, queries: int, keys: int) -> None:
    q, k, v = made(queries, keys, 32)
    mask = MASKS[kind](2, 3, queries, keys)
    assert is_close(kernel(q, k, v, mask), exact(q, k, v, mask))


@needs_library
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (65, 65), (30, 70), (70, 30)])
def test_causal_attention_sees_no_later_key(queries: int, keys: int) -> None:
    q, k, v = made(queries, keys, 32)
    assert is_close(kernel(q, k, v, is_causal=True), exact(q, k, v, is_causal=True))


@needs_library
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_groups_of_heads_share_keys_and_values(key_heads: int) -> None:
    q, k, v = made(40, 50, 32, heads=8, key_heads=key_heads)
    assert is_close(kernel(q, k, v), exact(q, k, v, enable_gqa=True))


@needs_library
def test_values_may_have_a_size_of_their_own() -> None:
    q, k, _ = made(40, 50, 32)
    v = torch.randn(2, 3, 50, 20)
    assert is_close(kernel(q, k, v), exact(q, k, v))


@needs_library
@pytest.mark.parametrize("scale", [0.0, -0.5, 1.0, None])
def test_the_scale_is_the_one_given(scale: float | None) -> None:
    q, k, v = made(40, 50, 8)
    assert is_close(kernel(q, k, v, scale=scale), exact(q, k, v, scale=scale))


@needs_library
def test_scores_too_large_for_exp_do_not_overflow() -> None:
    q, k, v = made(65, 65, 32)
    q, most = q * 100, float((q * 100 @ k.mT).abs().max()) / math.sqrt(32)
    assert most > 300
    assert is_close(kernel(q, k, v), exact(q, k, v), most)


@needs_library
def test_a_row_of_the_lowest_number_is_an_even_mean() -> None:
    q, k, v = made(40, 50, 32)
    mask = torch.full((40, 50), torch.finfo(torch.float32).min)
    assert is_close(kernel(q, k, v, mask), v.double().mean(2, keepdim=True).expand(2, 3, 40, 32))


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_a_query_that_may_see_nothing_gives_zeros_as_in_torch(dtype: torch.dtype) -> None:
    q, k, v = made(40, 50, 32)
    allowed = torch.ones(40, 50, dtype=torch.bool)
    allowed[3] = False
    mask = allowed if dtype == torch.bool else torch.where(allowed, 0.0, -INF)
    found = kernel(q, k, v, mask)
    assert torch.equal(found[:, :, 3], torch.zeros(2, 3, 32))
    assert torch.equal(found == 0, F.scaled_dot_product_attention(q, k, v, mask) == 0)
    assert is_close(found, exact(q, k, v, mask))


PLACES = list(itertools.product("qkvm", (INF, -INF, NAN)))


@needs_library
@pytest.mark.parametrize(("where", "value"), PLACES)
def test_what_is_not_finite_goes_where_torch_has_it(where: str, value: float) -> None:
    q, k, v = (x.clone() for x in made(40, 45, 32))
    given = {"q": q, "k": k, "v": v, "m": torch.zeros(2, 3, 40, 45)}
    given[where][1, 2, 7, 3] = value
    found, expected = kernel(*given.values()), F.scaled_dot_product_attention(*given.values())
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(found), kind(expected))
    finite = expected.isfinite()
    assert is_close(found[finite], expected[finite])


@needs_library
def test_an_odd_nan_stays_one() -> None:
    q, k, v = (x.clone() for x in made(40, 45, 32))
    q.view(torch.int32)[0, 0, 5, 0] = 0x7FC00001
    assert kernel(q, k, v)[0, 0, 5].isnan().all()


@needs_library
def test_weights_far_below_the_highest_are_zero() -> None:
    q, k = torch.zeros(1, 1, 40, 8), torch.zeros(1, 1, 40, 8)
    mask = torch.full((40, 40), -INF)
    mask[:, 1] = 0.0
    mask[:, 2] = torch.linspace(-200, 0, 40)
    v = torch.eye(40)[None, None]
    found, expected = kernel(q, k, v, mask)[0, 0], torch.softmax(mask.double(), -1)
    assert (found[mask == -INF] == 0).all()
    least = torch.finfo(torch.float32).tiny
    assert torch.allclose(found.double(), expected, rtol=4 * 2.0**-23 + 100 * 2.0**-24, atol=least)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@needs_library
@pytest.mark.parametrize(("queries", "keys"), [(1, 9), (65, 65), (40, 129)])
def test_neither_threads_nor_repetition_change_a_bit(
    queries: int, keys: int, two_threads: None
) -> None:
    q, k, v = made(queries, keys, 32)
    mask = torch.randn(2, 1, queries, keys)
    shared = [kernel(q, k, v, mask) for _ in range(3)]
    torch.set_num_threads(1)
    assert all(torch.equal(kernel(q, k, v, mask), found) for found in shared)


# -- which kernel runs -----------------------------------------------------------------------


def large() -> list[Tensor]:
    """Operands for which ours is chosen, and whose result differs from torch's in some bit."""
    return made(160, 160, 64)


@needs_library
def test_large_operands_go_to_our_kernel_in_a_layout_that_merges_for_free() -> None:
    q, k, v = large()
    mask = torch.randn(2, 1, 160, 160)
    found = scaled_dot_product_attention(q, k, v, mask)
    assert torch.equal(found, kernel(q, k, v, mask))
    assert not torch.equal(found, F.scaled_dot_product_attention(q, k, v, mask))
    assert found.transpose(1, 2).is_contiguous()


@needs_library
def test_the_default_dtype_does_not_matter() -> None:
    operands = large()
    expected = scaled_dot_product_attention(*operands)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(scaled_dot_product_attention(*operands), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@needs_library
def test_grouped_and_causal_attention_go_to_our_kernel() -> None:
    q, k, v = made(160, 160, 64, heads=4, key_heads=2)
    found = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=0.1)
    assert torch.equal(found, kernel(q, k, v, is_causal=True, scale=0.1))


OTHERS = {
    "few queries": lambda: (made(31, 2000, 64), {}),
    "little work": lambda: (made(40, 40, 8), {}),
    "float64": lambda: ([x.double() for x in large()], {}),
    "three dimensions": lambda: ([x.flatten(0, 1) for x in large()], {}),
    "strided sizes": lambda: ([x.mT.contiguous().mT for x in large()], {}),
    "a mask of float64": lambda: (
        [x.double() for x in large()],
        {"attn_mask": torch.zeros(160, 160).double()},
    ),
    "masked and causal": lambda: (
        large(),
        {"attn_mask": torch.zeros(160, 160), "is_causal": True},
    ),
    "no size": lambda: ([*(x[..., :0] for x in large()[:2]), large()[2]], {"scale": 1.0}),
    "no keys": lambda: (made(40, 0, 64), {}),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_operands_go_to_torch(kind: str) -> None:
    operands, options = OTHERS[kind]()
    found = scaled_dot_product_attention(*operands, **options)
    assert torch.equal(found, F.scaled_dot_product_attention(*operands, **options))


@pytest.mark.parametrize("index", range(4))
def test_gradients_are_torchs(index: int) -> None:
    operands = [*large(), torch.zeros(160, 160)]
    gradients = []
    for function in (scaled_dot_product_attention, F.scaled_dot_product_attention):
        given = [x.clone() for x in operands]
        given[index].requires_grad_()
        function(*given).square().sum().backward()
        gradients.append(given[index].grad)
    assert torch.equal(*gradients)


def test_autocast_gives_what_it_gives_with_torch() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        found = scaled_dot_product_attention(*large())
    assert found.dtype == torch.bfloat16


def test_dropout_is_torchs() -> None:
    operands, results = large(), []
    for function in (scaled_dot_product_attention, F.scaled_dot_product_attention):
        torch.manual_seed(0)
        results.append(function(*operands, dropout_p=0.5))
    assert torch.equal(*results)


BAD_CALLS = {
    "must match the size": lambda q, k, v: scaled_dot_product_attention(q, k[:, :2], v[:, :2]),
    "same dtype": lambda q, k, v: scaled_dot_product_attention(q, k.double(), v),
}


@pytest.mark.parametrize("message", BAD_CALLS)
def test_a_bad_call_gets_torchs_error(message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        BAD_CALLS[message](*large())


# -- who watches -----------------------------------------------------------------------------


def test_a_tracer_sees_one_call_of_our_function() -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return scaled_dot_product_attention(q, k, v, scale=0.5)

    (call,) = [n for n in fx.symbolic_trace(Model()).graph.nodes if n.op == "call_function"]
    assert call.target is scaled_dot_product_attention and call.kwargs["scale"] == 0.5


@pytest.mark.slow
def test_torchs_tools_see_torchs_function() -> None:
    operands = large()
    with Seen() as seen:
        scaled_dot_product_attention(*operands)
    assert any("scaled_dot_product" in name for name in seen.names)
    exported = torch.export.export(Call(), tuple(operands))
    assert "mase" not in str(exported.graph) and "scaled_dot_product" in str(exported.graph)
    each = torch.vmap(scaled_dot_product_attention)(*(x[:, None] for x in operands))
    expected = F.scaled_dot_product_attention(*operands)
    assert torch.allclose(each[:, 0], expected, atol=1e-6)


class Seen(TorchDispatchMode):
    """Keeps the names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Call(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@needs_library
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_torch_compile_runs_our_kernel_without_a_graph_break(backend: str) -> None:
    operands = large()
    compiled = torch.compile(Call(), fullgraph=True, backend=backend)
    with torch.no_grad():
        assert torch.equal(compiled(*operands), kernel(*operands).transpose(1, 2).flatten(2))


@needs_library
def test_the_operator_keeps_torchs_contract() -> None:
    checks = ("test_schema", "test_faketensor")
    operator = torch.ops.mase.attention
    q, k, v = large()
    torch.library.opcheck(operator, (q, k, v, None, True, 0.1), test_utils=checks)
    torch.library.opcheck(
        operator, (q[:, :, :9], k, v, torch.zeros(9, 160), False, 0.1), test_utils=checks
    )


@pytest.mark.slow
def test_without_a_compiler_torch_computes() -> None:
    program = (
        "import torch, torch.nn.functional as F; from chop.kernels import attention; "
        "assert attention.library() is None; given = torch.randn(3, 2, 3, 160, 64); "
        "found = attention.scaled_dot_product_attention(*given); "
        "assert torch.equal(found, F.scaled_dot_product_attention(*given)); "
        "compiled = torch.ops.mase.attention(*given, None, False, 0.125); "
        "assert torch.equal(compiled, found) and compiled.transpose(1, 2).is_contiguous()"
    )
    environment = {**os.environ, "MASE_NATIVE": "0", "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
