"""The quantised weight of a frozen layer is kept, and never stale."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from quantized_cases import config_of, random
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from chop.errors import ConfigError
from chop.nn.quantized import (
    cache_limit,
    cached_bytes,
    clear_caches,
    from_float,
    set_cache_limit,
)
from chop.nn.quantized.modules.linear import LinearInteger

INTEGER = config_of("integer")
X = random(3, 6, trains=False)


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return LinearInteger(6, 5, config=INTEGER)


def used(layer):
    """The quantised weight that a call uses."""
    return layer.quantized_parameters()[0]


def is_fresh(layer) -> bool:
    """Whether calls without gradients see the weight as it is now."""
    with torch.no_grad():
        return torch.equal(layer(X), from_float(layer, layer.config)(X))


def test_a_frozen_weight_is_quantised_once(layer):
    layer.requires_grad_(False)
    assert used(layer) is used(layer)


def test_a_weight_is_quantised_once_while_gradients_are_off(layer):
    with torch.no_grad():
        assert used(layer) is used(layer)
    assert used(layer) is not used(layer)


def test_a_weight_that_trains_gets_its_gradient_after_an_evaluation(layer):
    with torch.no_grad():
        layer(X)
    layer(X).sum().backward()
    assert layer.weight.grad is not None


def test_a_weight_kept_in_inference_mode_serves_training_of_other_layers(layer):
    layer.requires_grad_(False)
    with torch.inference_mode():
        layer(X)
    x = random(3, 6)
    layer(x).sum().backward()
    assert x.grad is not None


def add_in_place(layer):
    with torch.no_grad():
        layer.weight += 1


def step(layer):
    layer.requires_grad_(True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(X).sum().backward()
    optimizer.step()


def step_through_data(layer):
    layer.requires_grad_(True)
    layer(X).sum().backward()
    layer.weight.data -= layer.weight.grad


def load(layer):
    layer.load_state_dict({k: v + 1 for k, v in layer.state_dict().items()})


def assign(layer):
    layer.load_state_dict({k: v + 1 for k, v in layer.state_dict().items()}, assign=True)


def assign_data(layer):
    layer.weight.data = layer.weight.data + 1


def edit_data_and_evaluate(layer):
    layer.weight.data += 1
    layer.eval()


def replace_parameter(layer):
    layer.weight = nn.Parameter(layer.weight.detach() + 1)


def cast(layer):
    layer.double().float()


def change_format(layer):
    layer.quantizers = layer.quantizers | {"weight": layer.quantizers["weight"].__class__(4, 1)}


CHANGES = [
    add_in_place,
    step,
    step_through_data,
    load,
    assign,
    assign_data,
    edit_data_and_evaluate,
    replace_parameter,
    cast,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("frozen", [True, False])
def test_what_is_kept_is_never_stale(layer, change, frozen):
    layer.requires_grad_(not frozen)
    assert is_fresh(layer)
    change(layer)
    assert is_fresh(layer)


def test_a_change_of_format_is_seen(layer):
    with torch.no_grad():
        before = used(layer)
        change_format(layer)
        assert not torch.equal(used(layer), before)


def test_an_address_that_is_used_again_is_not_taken_for_the_old_weight(layer):
    layer.requires_grad_(False)
    for _ in range(20):  # allocators hand freed blocks out again
        layer.weight.data = torch.randn(5, 6)
        assert is_fresh(layer)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_keeps_its_own(layer, copied):
    layer.requires_grad_(False)
    layer(X)
    other = copied(layer)
    with torch.no_grad():
        other.weight.zero_()
    assert is_fresh(other)
    assert is_fresh(layer)


def test_what_is_kept_is_no_part_of_the_module(layer):
    layer.requires_grad_(False)
    attributes = set(vars(layer))
    layer(X)
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert set(vars(layer)) == attributes


def test_what_is_kept_goes_with_the_module():
    layer = LinearInteger(6, 5, config=INTEGER).requires_grad_(False)
    result = weakref.ref(used(layer))
    assert result() is not None
    del layer
    gc.collect()
    assert result() is None


def test_random_rounding_is_drawn_anew_at_each_call():
    config = INTEGER | {"weight_rounding": "stochastic"}
    layer = LinearInteger(64, 64, config=config).requires_grad_(False)
    assert not torch.equal(used(layer), used(layer))


@pytest.fixture
def limit():
    """A limit of one weight of 64 x 64 floats; the usual one afterwards."""
    usual, size = cache_limit(), 64 * 64 * 4
    gc.collect()
    clear_caches()
    set_cache_limit(size)
    yield size
    set_cache_limit(usual)


def wide_layers(count):
    made = [LinearInteger(64, 64, bias=False, config=INTEGER) for _ in range(count)]
    return [layer.requires_grad_(False) for layer in made]


def test_what_is_kept_never_exceeds_the_limit(limit):
    layers = wide_layers(3)
    for _ in range(2):
        for layer in layers:
            layer(torch.ones(1, 64))
            assert cached_bytes() <= limit
    assert [used(layer) is used(layer) for layer in layers] == [True, False, False]


def test_room_is_given_back_with_the_layer_and_on_demand(limit):
    first, second = wide_layers(2)
    used(first)
    assert cached_bytes() == limit
    del first
    gc.collect()
    assert cached_bytes() == 0
    used(second)
    assert cached_bytes() == limit
    clear_caches()
    assert cached_bytes() == 0


def test_a_limit_of_zero_keeps_nothing_and_frees_what_is_kept(limit):
    (layer,) = wide_layers(1)
    used(layer)
    set_cache_limit(0)
    assert cached_bytes() == 0
    assert used(layer) is not used(layer)


def test_what_is_kept_does_not_keep_a_replaced_weight_alive():
    (layer,) = wide_layers(1)
    used(layer)
    storage = StorageWeakRef(layer.weight.untyped_storage())
    layer.weight.data = torch.randn(64, 64)
    assert storage.expired()


def test_a_negative_limit_is_refused():
    with pytest.raises(ConfigError, match="must be at least 0 bytes, got -1"):
        set_cache_limit(-1)
