"""Packed layers whose inputs are rounded by `round_activations`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from chop.errors import ConfigError
from chop.kernels import QLinearPacked, pack, packed_linear, round_activations, unpack
from chop.nn.quantizers import Integer, MXInt

FORM = MXInt(8, block_size=32)


def layer(format: str = "mxint4") -> QLinearPacked:
    torch.manual_seed(0)
    return QLinearPacked(pack(torch.randn(40, 96), format), None)


@pytest.mark.parametrize("format", ["mxint4", "mxint8", "mxfp4", "int4", "int8_group"])
@pytest.mark.parametrize("batch", [1, 3, 20])
def test_a_product_is_that_of_rounded_inputs(format: str, batch: int) -> None:
    plain, x = layer(format), torch.randn(batch, 96)
    with torch.no_grad():
        before = plain(x)
        assert round_activations(plain) == 1
        expected = FORM(x).double() @ unpack(plain.weight).double().T
        assert torch.allclose(plain(x).double(), expected, atol=1e-4)
        assert torch.equal(plain(x), packed_linear(FORM(x), plain.weight))
    assert not torch.equal(plain(x), before)


def test_layers_with_input_formats_and_mxfp8_weights_keep_theirs() -> None:
    own = Integer(8, 4)
    model = nn.ModuleList([layer(), layer("mxfp8"), layer("int4")])
    model[2].quantizers = {"data_in": own}
    assert round_activations(model) == 2
    assert [one.quantizers.get("data_in") for one in model] == [FORM, None, own]


@pytest.mark.parametrize(
    "model, words",
    [(nn.Linear(32, 4), "the model has no packed linear layers"), (layer("mxfp8"), "in mxfp8")],
)
def test_a_model_without_such_layers_is_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        round_activations(model)
