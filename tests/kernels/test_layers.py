"""Packed layers compute with the values their bytes stand for."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from chop.errors import ConfigError
from chop.ir.trace.environment import kept_buffers
from chop.kernels import (
    PACKED_FORMATS,
    QEmbeddingPacked,
    QLinearInt8,
    QLinearPacked,
    int8_linear,
    pack,
    unpack,
)
from chop.kernels.fused import ACTIVATIONS, IN_PLACE, AddLayerNorm, LinearActivation
from chop.kernels.layers import PACKED_LAYERS, unpacked_weight
from chop.kernels.packed_experts import QExpertsPacked
from chop.nn.quantizers import MXInt


class Clones(TorchDispatchMode):
    """Mode that counts the bytes of clones."""

    nbytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.clone.default:
            self.nbytes += result.nbytes
        return result


def packed_layer(kind):
    """Return a packed layer and an input of it."""
    if kind is QEmbeddingPacked:
        return QEmbeddingPacked.from_embedding(nn.Embedding(8, 64)), (torch.tensor([3]),)
    if kind is QExpertsPacked:
        return QExpertsPacked(pack(torch.randn(2, 8, 64))), (
            torch.randn(3, 64),
            torch.tensor([1, 3]),
        )
    return kind.from_linear(nn.Linear(64, 8)), (torch.randn(3, 64),)


@pytest.mark.parametrize("kind", PACKED_LAYERS)
def test_packed_weights_are_neither_written_nor_copied_by_a_capture(kind):
    layer, inputs = packed_layer(kind)
    model = nn.Sequential(layer, nn.BatchNorm1d(4))
    versions = [buffer._version for buffer in layer.buffers()]
    with Clones() as seen, kept_buffers(model):
        layer(*inputs)
        model[1].num_batches_tracked += 1
    assert [buffer._version for buffer in layer.buffers()] == versions
    assert model[1].num_batches_tracked == 0
    assert seen.nbytes == sum(buffer.nbytes for buffer in model[1].buffers())


@pytest.mark.parametrize("format", PACKED_FORMATS)
def test_packed_linear_is_the_linear_of_its_unpacked_weight(format):
    linear, x = nn.Linear(70, 5), torch.randn(3, 70)
    layer = QLinearPacked.from_linear(linear, format)
    expected = F.linear(x, unpacked_weight(layer), linear.bias)
    assert torch.allclose(layer(x), expected, atol=1e-5)


def test_packed_linear_applies_the_formats_of_its_activations():
    linear, x, form = nn.Linear(32, 4), torch.randn(2, 32), MXInt(4)
    plain = QLinearPacked.from_linear(linear)
    layer = QLinearPacked(plain.weight, linear.bias, {"data_in": form, "data_out": form})
    assert torch.equal(layer(x), form(plain(form(x))))


@pytest.mark.parametrize("layer", [
    QLinearPacked.from_linear(nn.Linear(64, 8), "mxint4"),
    QLinearInt8.from_linear(nn.Linear(64, 8)),
])  # fmt: skip
def test_packed_layers_copy_pickle_and_fill_a_state_dict(layer):
    x = torch.randn(2, 64)
    again = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    assert all(torch.equal(other(x), layer(x)) for other in again)
    assert set(layer.state_dict()) == {"codes", "scales", "bias"}


def test_packed_weights_do_not_train_and_the_bias_does():
    layer = QLinearPacked.from_linear(nn.Linear(64, 8))
    assert [name for name, _ in layer.named_parameters()] == ["bias"]
    layer(torch.randn(2, 64)).sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((8,), 2.0))


def test_packed_embedding_gives_rows_in_the_tables_type():
    table = nn.Embedding(10, 40, dtype=torch.bfloat16)
    layer = QEmbeddingPacked.from_embedding(table)
    rows = layer(torch.tensor([[1, 2]]))
    assert rows.dtype == torch.bfloat16
    assert torch.equal(rows[0], unpack(layer.weight, torch.bfloat16)[1:3])


def test_an_embedding_that_renormalises_is_refused():
    with pytest.raises(ConfigError, match="max_norm rewrites the table at each call"):
        QEmbeddingPacked.from_embedding(nn.Embedding(4, 4, max_norm=1.0))


@pytest.mark.parametrize("quantize_input", [False, True])
@pytest.mark.parametrize("shape", [(16,), (3, 16), (2, 3, 16), (0, 16)])
def test_int8_linear_is_near_the_float_one(shape, quantize_input):
    linear, x = nn.Linear(16, 8), torch.randn(shape)
    with torch.no_grad():
        y = QLinearInt8.from_linear(linear, quantize_input=quantize_input)(x)
        assert y.shape == linear(x).shape
        assert torch.allclose(y, linear(x), atol=0.05)


def test_int8_weights_alone_are_exact_for_their_values():
    layer, x = QLinearInt8.from_linear(nn.Linear(64, 8, bias=False)), torch.randn(4, 64)
    expected = x @ unpacked_weight(layer).t()
    with torch.no_grad():
        assert torch.allclose(layer(x), expected, atol=1e-4)
    assert torch.allclose(layer(x), expected, atol=1e-4)  # the path with gradients


def test_int8_weights_alone_do_not_overflow_half_precision():
    layer = QLinearInt8.from_linear(nn.Linear(256, 4, bias=False))
    layer.scales.fill_(1e-3)
    layer.codes.fill_(127)
    y = layer(torch.full((1, 256), 200.0, dtype=torch.float16))
    assert y.dtype == torch.float16
    assert torch.allclose(y.float(), torch.tensor(256 * 200 * 0.127), rtol=1e-3)


def test_products_of_int8_are_exact():
    weight, x = (
        torch.randint(-127, 128, size, dtype=torch.int8) for size in ((24, 1000), (5, 1000))
    )
    product = int8_linear.integer_product(x, weight, int8_linear.unit_scales(weight))
    assert torch.equal(product.long(), x.long() @ weight.long().t())


def test_what_int8_weights_can_make_again_is_not_saved():
    layer = QLinearInt8.from_linear(nn.Linear(8, 2))
    assert set(layer.state_dict()) == {"codes", "scales", "bias"}


def test_a_row_of_zeros_has_a_scale():
    linear = nn.Linear(8, 2, bias=False)
    nn.init.zeros_(linear.weight)
    assert torch.equal(QLinearInt8.from_linear(linear)(torch.ones(1, 8)), torch.zeros(1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("layer", [
    QLinearPacked.from_linear(nn.Linear(64, 8)),
    QLinearInt8.from_linear(nn.Linear(64, 8), quantize_input=True),
    QLinearInt8.from_linear(nn.Linear(64, 8)),
    nn.Sequential(QEmbeddingPacked.from_embedding(nn.Embedding(9, 64)), nn.Linear(64, 2)),
])  # fmt: skip
def test_packed_layers_compile_without_a_graph_break(layer):
    is_embedding = isinstance(layer, nn.Sequential)
    x = torch.tensor([[1, 8]]) if is_embedding else torch.randn(3, 64)
    compiled = torch.compile(layer, fullgraph=True)
    with torch.no_grad():
        assert torch.allclose(compiled(x), layer(x), atol=1e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_fused_activation_is_the_activation_of_the_product(name):
    linear, x = nn.Linear(6, 4), torch.randn(3, 6)
    layer = LinearActivation(linear, name)
    expected = ACTIVATIONS[name](linear(x))
    assert torch.equal(layer(x), expected)
    with torch.no_grad():
        assert torch.equal(layer(x), expected)
    assert set(ACTIVATIONS) == set(IN_PLACE)


def test_a_fused_norm_overwrites_only_without_gradients():
    layer, x, y = (
        AddLayerNorm(nn.LayerNorm(4), overwrites=True),
        torch.ones(2, 4),
        torch.randn(2, 4),
    )
    expected = F.layer_norm(x + y, (4,))
    assert torch.allclose(layer(x, y), expected) and torch.equal(x, torch.ones(2, 4))
    with torch.no_grad():
        assert torch.allclose(layer(x, y), expected) and not torch.equal(x, torch.ones(2, 4))
