"""Parts of a tensor are rounded as the whole tensor, at the units that a format declares."""

import itertools

import pytest
import torch
from format_cases import CASES, label, same, with_rounding

from chop.nn.quantizers import Binary, Quantizer, ScaleInteger

pytestmark = pytest.mark.share(3)

LISTED_CASES = (
    ScaleInteger(8, scale=(0.1, 0.3, 0.2, 0.5), granularity="channel", axis=1),
    ScaleInteger(8, scale=(0.1, 0.3), granularity="group", group_size=3),
)
PARTED = (*CASES, *LISTED_CASES)


def sizes(quantizer: Quantizer) -> list[int]:
    """Sizes of a tensor of three dimensions, with two units or more in each."""
    units = [quantizer.part_unit(3, dim) for dim in range(3)]
    found = [2 * unit if unit and unit > 2 else 4 for unit in units]
    if quantizer == LISTED_CASES[1]:
        found[2] = 6
    return found


def tensors(quantizer: Quantizer) -> list[torch.Tensor]:
    """Random tensors whose blocks differ in magnitude."""
    generator = torch.Generator().manual_seed(0)
    shape = sizes(quantizer)
    found = [torch.randn(shape, generator=generator) for _ in range(8)]
    return [x * torch.exp2(torch.randint(-120, 60, shape, generator=generator)) for x in found]


def is_same_in_parts(quantizer: Quantizer, x: torch.Tensor, dim: int, at: int) -> bool:
    parts = x.split([at, x.shape[dim] - at], dim)
    return same(torch.cat([quantizer.quantize(part) for part in parts], dim), quantizer.quantize(x))


@pytest.mark.share(3)
@pytest.mark.parametrize("quantizer", PARTED, ids=label)
@pytest.mark.parametrize("dim", range(3))
def test_parts_of_whole_units_are_rounded_as_the_whole(quantizer, dim):
    unit = quantizer.part_unit(3, dim)
    if unit is None:
        return
    for x in tensors(quantizer):
        for at in range(unit, x.shape[dim], unit):
            assert is_same_in_parts(quantizer, x, dim, at), (quantizer, dim, at)


@pytest.mark.share(3)
@pytest.mark.parametrize("quantizer", PARTED, ids=label)
@pytest.mark.parametrize("dim", range(3))
def test_no_smaller_unit_would_do(quantizer, dim):
    unit = quantizer.part_unit(3, dim)
    if unit == 1 or quantizer in LISTED_CASES:  # a list of scales fits the whole dimension only
        return
    at = 1 if unit is None else unit - 1
    found = [is_same_in_parts(quantizer, x, dim, at) for x in tensors(quantizer)]
    assert not all(found), (quantizer, dim, at)


@pytest.mark.parametrize("quantizer", PARTED, ids=label)
def test_vectors_have_units_too(quantizer):
    unit = quantizer.part_unit(1, 0)
    if unit is None or quantizer in LISTED_CASES:
        return
    x = torch.randn(3 * unit, generator=torch.Generator().manual_seed(1))
    assert is_same_in_parts(quantizer, x, 0, unit), quantizer


@pytest.mark.parametrize("dim", range(3))
def test_random_rounding_needs_the_whole_tensor(dim):
    random = [with_rounding(case, "stochastic") for case in CASES]
    random = [case for case in random if getattr(case, "rounding", "") == "stochastic"]
    for case in [*random, Binary(stochastic=True)]:
        assert case.is_random and case.part_unit(3, dim) is None, case


def test_stored_scales_are_split_with_their_operand():
    units = {
        "tensor": (1, 1),
        "channel": (1, 1),
        "group": (1, 32),
    }
    for granularity, expected in units.items():
        form = ScaleInteger(8, scale="stored", granularity=granularity, group_size=32)
        assert tuple(form.part_unit(2, dim) for dim in range(2)) == expected


def test_the_cases_have_all_kinds_of_units():
    both = list(itertools.product(CASES, range(3)))
    assert any(q.part_unit(3, dim) is None for q, dim in both)
    assert any((q.part_unit(3, dim) or 0) > 1 for q, dim in both)
