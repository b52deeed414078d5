"""Every component against its Python class: sizes × widths × parallelism × stalls."""

import pytest

from chop.hw.check import check_components
from chop.hw.component import COMPONENTS

LONG = ("_external", "fixed_avg_pool", "fixed_matmul", "_sub", "_conv1d", "_hardsigmoid")
"""Ends of names: variants that share their RTL with another component, and what random layers and
attention also try."""
MANY = 8
"""Cases of a component from which on every second one is left to the slow tests."""
NAMES = sorted(name for name, cls in COMPONENTS.items() if cls.__module__.startswith("chop."))


@pytest.mark.parametrize("name", NAMES)
def test_every_component_has_cases_of_its_own_kind(name):
    cases = COMPONENTS[name].cases()
    assert cases and {type(case) for case in cases} == {COMPONENTS[name]}


def _marked(name):
    return pytest.param(name, marks=pytest.mark.slow) if name.endswith(LONG) else name


@pytest.mark.sim
@pytest.mark.parametrize("name", [_marked(name) for name in NAMES])
def test_component_is_exact_in_values_and_cycles(name, tmp_path):
    cases = COMPONENTS[name].cases()
    for verdict in check_components(cases[:: 2 if len(cases) >= MANY else 1], tmp_path):
        assert verdict.is_exact


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("name", [name for name in NAMES if len(COMPONENTS[name].cases()) >= MANY])
def test_the_other_cases_are_exact_in_values_and_cycles(name, tmp_path):
    for verdict in check_components(COMPONENTS[name].cases()[1::2], tmp_path):
        assert verdict.is_exact
