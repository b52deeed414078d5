"""Every component against its Python class: sizes × widths × parallelism × stalls.

A group of components is one build. Faults are built into its RTL as well, all turned off while the
components are tested: then each of them is turned on, and the same test must fail.
"""

import pytest
from mutants import EQUIVALENT
from mutation_engine import faults
from mutation_run import CAMPAIGN, ELSEWHERE, GROUPS, Bench, campaign, group_faults

from chop.hw.design.component import COMPONENTS, rtl_sources
from chop.hw.sim.component_check import bench_design
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import lint

NAMES = sorted(name for name, cls in COMPONENTS.items() if cls.__module__.startswith("chop."))
SAMPLE = 12
"""Faults of a group that every run of the tests turns on; the slow tests try all of `CAMPAIGN`."""


@pytest.mark.parametrize("name", NAMES)
def test_every_component_has_cases_of_its_own_kind(name):
    cases = COMPONENTS[name].cases()
    assert cases and {type(case) for case in cases} == {COMPONENTS[name]}


def test_every_component_and_every_module_is_in_a_group():
    assert sorted(name for group in GROUPS.values() for name in group.components) == NAMES
    modules = set(rtl_sources())
    with_faults = {module for module in modules - ELSEWHERE if faults(module)}
    assert {module for group in GROUPS.values() for module in group.modules} == with_faults


def test_faults_are_many_and_those_without_effect_are_among_them():
    chosen = {fault.name for group in GROUPS.values() for fault in group_faults(group, CAMPAIGN)}
    every = {fault.name for group in GROUPS.values() for m in group.modules for fault in faults(m)}
    assert len(chosen) >= 450
    assert len(every) >= 1900
    assert set(EQUIVALENT) <= every, "reasons that no fault needs any more"


@pytest.fixture(scope="module", params=GROUPS)
def bench(request, tmp_path_factory):
    group = GROUPS[request.param]
    return Bench(group, group_faults(group, SAMPLE), tmp_path_factory.mktemp(request.param))


@pytest.mark.sim
@pytest.mark.parametrize("name", GROUPS)
def test_the_rtl_of_components_is_silent_under_lint(name, tmp_path):
    assert lint(emit(bench_design(GROUPS[name].cases()), tmp_path)) == ""


@pytest.mark.sim
def test_components_are_exact_in_values_and_cycles(bench):
    assert all(verdict.is_exact for verdict in bench.verdicts(None))


@pytest.mark.sim
def test_faults_are_noticed(bench):
    assert [str(fault) for fault in bench.survivors()] == []


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("name", GROUPS)
def test_every_fault_is_noticed_or_has_no_effect(name, tmp_path):
    result = campaign(GROUPS[name], tmp_path)
    assert result.unnoticed == []
    assert result.needless == [], "noticed, and yet in the table of faults without effect"
